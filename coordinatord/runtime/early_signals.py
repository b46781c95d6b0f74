"""Installs signal defaults before anything else is imported: PID 1 would not get SIGTERM otherwise.

This module imports very little, so that it runs early. The program later replaces these handlers with its own.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a process by default."""


def install_signal_defaults() -> None:
    """Let signals such as SIGTERM end this program at once, also as PID 1; ignored signals stay ignored.

    The kernel drops signals without a handler that are sent to PID 1 (pid_namespaces(7)). SIGCHLD gets its default
    action, because a parent may have ignored it, and then the kernel would reap our children (wait(2)).
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in ENDING:
        if signal.getsignal(signum) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(signum, _end if os.getpid() == 1 else signal.SIG_DFL)


def _end(signum: int, _: FrameType | None) -> None:
    os._exit(128 + signum)
