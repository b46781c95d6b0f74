"""Reaps orphans: processes whose parent has ended, and which become children of this one.

Nodeclient gets such children as PID 1 of a container, or as a subreaper (prctl(2)), which it is with warm workers. No
other process would reap them, and the container would fill with zombies. Nothing is killed here.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from nodeclient.workers.process_tree import statuses

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
"""The values in linux/prctl.h."""


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def reaping_orphans(children: Callable[[], Collection[int]]) -> Iterator[None]:
    """Reap orphans as they end; `children` returns the processes that other modules have started and reap.

    Enter it in the main thread, with the loop running. It does nothing if this process adopts no orphans.
    """
    if not _adopts():
        yield
        return
    loop = asyncio.get_running_loop()

    def reap() -> None:
        own, reaped_elsewhere = os.getpid(), children()
        for status in statuses():
            if status.parent == own and status.dead and status.pid not in reaped_elsewhere:
                os.waitpid(status.pid, os.WNOHANG)

    # The loop's `add_signal_handler` does not work: uvloop does not allow it for SIGCHLD.
    previous = signal.signal(signal.SIGCHLD, lambda _signum, _frame: loop.call_soon_threadsafe(reap))
    try:
        reap()
        yield
    finally:
        signal.signal(signal.SIGCHLD, previous)


def _adopts() -> bool:
    subreaper = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(subreaper), 0, 0, 0)
    return os.getpid() == 1 or bool(subreaper.value)
