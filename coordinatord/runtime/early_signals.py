"""Lets SIGTERM and similar signals end the program from its first moment on, also where it is PID 1.

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

    The kernel drops a signal to PID 1 unless PID 1 has a handler for it (pid_namespaces(7)). SIGCHLD gets its default
    action: if a parent has ignored it, the kernel would reap our children itself (wait(2)). Python's own handler of
    SIGINT is replaced as well, since it would raise KeyboardInterrupt.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in ENDING:
        if signal.getsignal(signum) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(signum, _end if os.getpid() == 1 else signal.SIG_DFL)


def _end(signum: int, _: FrameType | None) -> None:
    os._exit(128 + signum)
