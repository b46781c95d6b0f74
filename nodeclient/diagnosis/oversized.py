"""Finds allocations that failed because they were larger than all memory of the host or the GPU.

Such a size is a mistake of the script, often in a unit or a shape, and no host is short of memory.
"""

from __future__ import annotations

import re
from pathlib import Path

from coordinatord.protocol.text import sized
from nodeclient.host.devices import Host
from nodeclient.host.memory import memory_and_swap

_SIZE = r"([\d.]+) (bytes|[KMGTPE]iB)"

_HOST_REQUEST = re.compile(rf"you tried to allocate {_SIZE}|Unable to allocate {_SIZE} for an array")
"""What torch and NumPy write."""

_GPU_REQUEST = re.compile(rf"Tried to allocate {_SIZE}\. GPU \d+ has a total capacity of {_SIZE}")
"""What torch writes of a GPU, whatever its maker."""

_EXPONENTS = {unit: exponent for exponent, unit in enumerate(("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))}


def explain_oversized(error: str, root: Path = Path("/")) -> str:
    """Say how much memory a worker asked for, if that was more than there is in all; empty otherwise. Never raises.

    `error` is its exception in one line, and `root` the file system whose /proc says how much the host has.
    """
    if found := _GPU_REQUEST.search(error):
        return _explain(_bytes(found[1], found[2]), _bytes(found[3], found[4]), "GPU")
    if found := _HOST_REQUEST.search(error):
        number, unit = filter(None, found.groups())
        return _explain(_bytes(number, unit), memory_and_swap(Host(processes=root / "proc")), "host")
    return ""


def _explain(wanted: int, total: int | None, owner: str) -> str:
    if total is None or wanted <= total:
        return ""
    return f"it asked for {sized(wanted)} at once, and the {owner} has {sized(total)} in all"


def _bytes(number: str, unit: str) -> int:
    """Return a size in bytes; 0 if it is none."""
    try:
        return int(float(number) * 1024 ** _EXPONENTS[unit])
    except (ValueError, OverflowError):
        return 0
