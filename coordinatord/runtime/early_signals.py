"""Settles before anything else how a program ends by a signal until it handles its signals itself.

It imports next to nothing: until this has run, PID 1 of a container ignores signals.
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
    handler (pid_namespaces(7)). SIGCHLD gets its default: a parent may have ignored it, which is inherited, and then
    the kernel reaps children itself (wait(2)).
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in ENDING:
        if signal.getsignal(signum) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(signum, _end if os.getpid() == 1 else signal.SIG_DFL)


def _end(signum: int, _: FrameType | None) -> None:
    os._exit(128 + signum)
