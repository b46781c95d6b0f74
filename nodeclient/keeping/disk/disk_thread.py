"""Runs work on a disk that may hang for ever: in daemon threads, whose progress in bytes is watched.

A system call on a network file system may never return, and no thread can be ended from outside. So work that makes no
progress is cancelled, and its thread is left behind: a daemon thread does not keep the process from its exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from coordinatord.protocol.errors import OperationalError
from coordinatord.runtime.tasks import in_thread
from nodeclient.keeping.disk.durable_file import Progress

THREAD = "persist"
"""The name of the threads."""

STALL_S = 30.0
"""How long a thread may make no progress before the disk counts as hanging. The coordinator waits longer (`STUCK_S`),
and so gets the reason before it gives up."""

POLL_S = 0.5
"""The pause between two checks of the progress."""

Result = TypeVar("Result")


class DiskHangsError(OperationalError):
    """The disk does not answer; the text says what was waited for."""


class DiskThread:
    """Writes in one thread at a time, so that a disk that hangs blocks only one thread."""

    def __init__(self) -> None:
        self._working: asyncio.Future[Any] | None = None
        """The last work. After it was cancelled, it goes on until its system call returns."""
        self._hangs = False
        """Whether the last work hangs. Then further work fails at once, and does not wait for `STALL_S` again."""

    async def run(self, work: Callable[[], Result], progress: Progress) -> Result:
        """Run work that counts its `progress`, and return its result.

        Raises `DiskHangsError` if the work makes no progress, or if earlier work does not end, and the errors of the
        work. Cancelling this call cancels the work.
        """
        await self._await_last(progress)
        self._hangs = False
        self._working = thread = in_thread(work, THREAD)
        try:
            await _await_progress(thread, progress, "written")
            return thread.result()
        except DiskHangsError:
            self._hangs = True
            raise
        finally:
            progress.cancel()  # work that goes on ends at its next chunk

    async def _await_last(self, progress: Progress) -> None:
        """Wait until cancelled work has ended. Raises `DiskHangsError` if it does not end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + STALL_S
        while (last := self._working) is not None and not last.done():
            if self._hangs or loop.time() >= until:
                self._hangs = True
                raise DiskHangsError("the disk hangs: a write that was begun before has not ended")
            await asyncio.wait([last], timeout=POLL_S)
            progress.add(0)  # raises if the work of this call was cancelled


async def read_in_thread(work: Callable[[], Result], progress: Progress) -> Result:
    """Run work that reads and counts its `progress`, in a thread of its own; return its result.

    Raises `DiskHangsError` if the work makes no progress, and the errors of the work.
    """
    thread = in_thread(work, THREAD)
    await _await_progress(thread, progress, "read")
    return thread.result()


async def _await_progress(thread: asyncio.Future[Any], progress: Progress, participle: str) -> None:
    """Wait until a thread has ended. Raises `DiskHangsError` if it makes no progress for `STALL_S`.

    `participle` is "read" or "written", for the text of the error.
    """
    loop = asyncio.get_running_loop()
    seen, seen_at = progress.bytes, loop.time()
    while True:
        done, _ = await asyncio.wait([thread], timeout=POLL_S)
        if done:
            return
        if progress.bytes != seen:
            seen, seen_at = progress.bytes, loop.time()
        elif loop.time() >= seen_at + STALL_S:
            raise DiskHangsError(f"the disk hangs: nothing was {participle} for {STALL_S:g} s")
