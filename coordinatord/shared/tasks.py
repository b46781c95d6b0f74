"""Background tasks that are named, kept from the garbage collector and ended with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Tasks:
    """The background tasks of one owner. A task that fails ends the owner, by way of `guard`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # When nobody guards any more, a failure is not to be complained of as never retrieved.
        self._failure.add_done_callback(lambda failure: failure.cancelled() or failure.exception())

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine in the background."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def guard(self, wanted: asyncio.Future[Result]) -> Result:
        """Wait for a result, or raise the exception of the first task that has failed."""
        await asyncio.wait([wanted, self._failure], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        if self._failure.done():
            self._failure.result()
        return wanted.result()

    def fail(self, error: Exception) -> None:
        """End the owner as a task that failed with `error` would; only the first failure counts."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def cancel(self) -> None:
        """End all tasks and wait until they are gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception):
            self.fail(error)
