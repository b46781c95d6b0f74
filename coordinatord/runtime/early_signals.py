"""Settles, before anything else, how a signal ends the program until the program has handlers of its own.

This module imports next to nothing, so that it runs early: until then, PID 1 of a container ignores signals.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a process by default."""


def settle_signals() -> None:
    """Let the signals that end a program end this one at once, also as PID 1; ignored ones stay ignored.

    For PID 1 of a PID namespace, as in a container without an init, the kernel drops each signal for which there is no
    handler (pid_namespaces(7)). SIGCHLD gets its default action. A parent may have ignored it, and its children inherit
    that. The kernel would then reap this program's children itself (wait(2)).
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in ENDING:
        if signal.getsignal(signum) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(signum, _end if os.getpid() == 1 else signal.SIG_DFL)


def _end(signum: int, _: FrameType | None) -> None:
    os._exit(128 + signum)
