"""Turns the exits of workers into events, in their order, with an account of the first one that failed.

An account takes a moment: what the worker wrote last is still on its way, and files are to be read. What came first
must not depend on that, so the exits wait for each other, and each says how long ago it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nodeclient.core.events import Account, Event, WorkerExited

GiveAccount = Callable[[int, int], Awaitable[Account]]
"""Takes a local rank and an exit code as `subprocess` has it, of a worker that has ended."""


class Exits:
    """The exits of one node's workers."""

    def __init__(self, give_account: GiveAccount, submit: Callable[[Event], None]) -> None:
        self._give_account = give_account
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self._queue = asyncio.Queue[tuple[int, int, int, float]]()
        self._curious = False

    def begin(self) -> None:
        """A round begins: from now on a failure is worth an account."""
        self._curious = True

    def expect(self) -> None:
        """From now on workers end because they are told to."""
        self._curious = False

    def note(self, local_rank: int, exit_code: int, pid: int) -> None:
        """A worker has ended just now."""
        self._queue.put_nowait((local_rank, exit_code, pid, self._loop.time()))

    async def settled(self) -> None:
        """Wait until all exits so far have been told."""
        await self._queue.join()

    async def run(self) -> None:
        """Tell the exits until cancelled."""
        while True:
            local_rank, exit_code, pid, at = await self._queue.get()
            account = Account(pid)
            if exit_code and self._curious:
                self._curious = False  # what fails next does so in consequence
                account = await self._give_account(local_rank, exit_code)
            self._submit(WorkerExited(local_rank, exit_code, account, self._loop.time() - at))
            self._queue.task_done()
