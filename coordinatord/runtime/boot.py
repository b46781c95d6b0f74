"""Returns the id of this boot of the host, and the time since it.

The id tells whether two processes are, or were, on the same running host: it changes with each boot.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path


@cache
def boot_id() -> str:
    """Return the kernel's random id of this boot; empty in a sandbox that hides it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def boot_clock() -> float:
    """Return the seconds since this host was booted, sleep included. Nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
