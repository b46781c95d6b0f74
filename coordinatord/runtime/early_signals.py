"""Installs signal defaults before anything else is imported: as PID 1, the kernel would drop SIGTERM.

This module imports next to nothing, so that it runs early. The program replaces these handlers with its own later.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a process by default."""


def install_signal_defaults() -> None:
    """Let signals such as SIGTERM end this program at once, also as PID 1; ignored signals stay ignored.

    The kernel drops a signal to PID 1 of a PID namespace that has no handler for it (pid_namespaces(7)). SIGCHLD gets
    its default action: a process inherits that its parent ignored it, and the kernel would reap our children (wait(2)).
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in ENDING:
        if signal.getsignal(signum) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(signum, _end if os.getpid() == 1 else signal.SIG_DFL)


def _end(signum: int, _: FrameType | None) -> None:
    os._exit(128 + signum)
