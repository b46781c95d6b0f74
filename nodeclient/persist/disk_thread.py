"""Work on a disk that may hang for ever: threads that nobody waits for at the end, watched by the bytes that come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from coordinatord.protocol.errors import OperationalError
from nodeclient.persist.durable_file import Progress

STALL_S = 30.0
"""How long no byte may come before this node says that the disk hangs. The coordinator gives the step up later."""

LOOK_AGAIN_S = 0.5
"""The pause between two looks at how many bytes are written."""

Found = TypeVar("Found")


class DiskHangsError(OperationalError):
    """The disk does not answer."""


class DiskThread:
    """Writes in one thread at a time, so that a disk that hangs holds up one thread and no more."""

    def __init__(self) -> None:
        """Begin without a thread."""
        self._idle = threading.Event()
        """Set while no thread is at work; a thread that was given up is at work until its system call returns."""
        self._idle.set()

    async def do(self, work: Callable[[], Found], progress: Progress, note_bytes: Callable[[int], None]) -> Found:
        """Do work that counts its `progress`, and say now and then how many bytes that is.

        Raises `DiskHangsError` if no byte comes, or if work that was begun before has not ended; and what the work
        raises. The work is given up if nobody waits for it any more.
        """
        if not self._idle.is_set():
            raise DiskHangsError("the disk hangs: a write that was begun before has not ended")
        self._idle.clear()
        thread = in_thread(lambda: self._then_idle(work))
        try:
            await _end_of(thread, progress, note_bytes)
            return thread.result()
        finally:
            note_bytes(progress.bytes)
            progress.give_up()
            thread.cancel()  # nobody waits for it any more; it ends at its next chunk

    def _then_idle(self, work: Callable[[], Found]) -> Found:
        try:
            return work()
        finally:
            self._idle.set()


async def _end_of(thread: asyncio.Future[Found], progress: Progress, note_bytes: Callable[[int], None]) -> None:
    """Wait until a thread has ended. Raises `DiskHangsError` when it has stood still for `STALL_S`."""
    loop = asyncio.get_running_loop()
    seen, seen_at = progress.bytes, loop.time()
    while True:
        done, _ = await asyncio.wait([thread], timeout=LOOK_AGAIN_S)
        if done:
            return
        if progress.bytes != seen:
            seen, seen_at = progress.bytes, loop.time()
            note_bytes(seen)
        elif loop.time() >= seen_at + STALL_S:
            raise DiskHangsError(f"the disk hangs: nothing was written for {STALL_S:g} s")


def in_thread(work: Callable[[], Found]) -> asyncio.Future[Found]:
    """Begin work in a thread of its own, for which the end of the program does not wait; return what comes of it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Found] = loop.create_future()

    def finish(result: Found | None, error: Exception | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]  # it is the result where there is no error
            else:
                done.set_exception(error)

    def run() -> None:
        result, problem = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it is raised in the task that waits
            problem = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, problem)

    threading.Thread(target=run, name="persist", daemon=True).start()
    return done
