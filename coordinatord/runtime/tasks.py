"""Runs background tasks for an owner, such as a server: if one fails, the owner ends, and so do all of them.

asyncio would only log such an error, and the program would live on without the task. A failed callback of the event
loop ends the owner as well. `in_thread` runs work that may hang.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

Result = TypeVar("Result")

LOOPS = frozenset({"asyncio", "uvloop"})
"""The packages of event loops, which call callbacks."""

PER_CONNECTION = "aiohttp"
"""The package whose callbacks each serve one connection, so that an error of one must not end the daemon."""


class Tasks:
    """The background tasks of one owner, which awaits `guard`. As a context it cancels them at its end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Otherwise asyncio would log a failure after the end of `guard` as never retrieved.
        self._failure.add_done_callback(lambda failure: failure.cancelled() or failure.exception())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine in the background."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def guard(self, wanted: asyncio.Future[Result]) -> Result:
        """Wait for a result, or raise the exception of the first task that fails.

        Meanwhile a failed callback of the loop (`call_soon`, timers, readers, signal handlers) counts as a failed task.
        Without this, the loop would only log the error, and the callback's effect would be missing.
        """
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()
        loop.set_exception_handler(self._on_callback_error)
        try:
            await asyncio.wait([wanted, self._failure], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        finally:
            loop.set_exception_handler(before)
        if self._failure.done():
            self._failure.result()  # this raises
        return wanted.result()

    def fail(self, error: Exception) -> None:
        """End the owner like a task that failed with `error`; only the first failure counts."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_callback_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Fail by the error of a callback; for `context` see `call_exception_handler` in asyncio."""
        error = context.get("exception")
        counts = "handle" in context and not self._failure.done()  # other contexts are not about a callback
        if counts and isinstance(error, Exception) and _called_back(error) != PER_CONNECTION:
            self.fail(error)
        else:
            loop.default_exception_handler(context)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception):  # asyncio raises the others, such as SystemExit, from the loop
            self.fail(error)


def _called_back(error: BaseException) -> str:
    """Return the package of the callback that raised; empty if it was no Python code."""
    trace = error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in LOOPS:
            return package
        trace = trace.tb_next
    return ""


def in_thread(work: Callable[[], Result], name: str) -> asyncio.Future[Result]:
    """Start work that may hang in a daemon thread of this name; return a future of its result.

    Unlike an executor's thread, it does not delay the end of the program. An error that comes when nobody waits for the
    work any more is ignored. Raises `OSError` if no thread can start.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()
    done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # or asyncio would log it

    def finish(result: Result | None, error: Exception | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]  # it is the result where there is no error
            else:
                done.set_exception(error)

    def run() -> None:
        result, problem = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the future carries it to the task that waits
            problem = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, result, problem)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # Python raises this instead of EAGAIN
        raise OSError(errno.EAGAIN, "the system has no thread to give") from error
    return done
