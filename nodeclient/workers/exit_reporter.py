"""Turns the exits of workers into events, in their order, with a diagnosis of the first ones that failed.

A diagnosis takes a moment: what the worker wrote last is still on its way, and files are to be read. What came first
must not depend on that, so the exits wait for each other, and each says how long ago it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from coordinatord.protocol.fields import CONSEQUENCES_MAX
from nodeclient.core.events import Diagnosis, Event, WorkerExited

GIVEN_WITHIN_S = 1.0
"""Half of it is plenty: a diagnosis takes milliseconds. What hangs must not keep the others from being told to stop."""

_SIGNALS_FROM = 128
"""From here on codes are those of a shell whose program died of a signal."""

Diagnose = Callable[[int, int], Awaitable[Diagnosis]]
"""Takes a local rank and an exit code as `subprocess` has it, of a worker that has ended."""


class ExitReporter:
    """The exits of one node's workers, and what there is to say of them."""

    def __init__(self, give: Diagnose, submit: Callable[[Event], None]) -> None:
        self._give = give
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self._queue = asyncio.Queue[tuple[WorkerExited, float, bool]]()
        self._wanted = 0
        """How many more failures are worth a diagnosis."""
        self._expected = False

    def begin(self) -> None:
        """A round begins: the first failure is worth a diagnosis, and so are those that it may be compared with."""
        self._wanted, self._expected = 1 + CONSEQUENCES_MAX, False

    def expect_exits(self) -> None:
        """From now on workers end because they are told to; after a failure, some still fail by themselves."""
        self._expected = True
        if self._wanted > CONSEQUENCES_MAX:
            self._wanted = 0

    def note(self, local_rank: int, exit_code: int, pid: int) -> None:
        """A worker has ended just now."""
        # Among those that are told to end, who has a code of its own was about to fail; the others died of a signal.
        by_itself = 0 < exit_code < _SIGNALS_FROM if self._expected else exit_code != 0
        wanted = self._wanted > 0 and by_itself
        self._wanted -= wanted
        self._queue.put_nowait((WorkerExited(local_rank, exit_code, Diagnosis(pid)), self._loop.time(), wanted))

    async def settled(self) -> None:
        """Wait until all exits so far have been told."""
        await self._queue.join()

    async def run(self) -> None:
        """Tell the exits until cancelled."""
        while True:
            exited, at, wanted = await self._queue.get()
            diagnosis = await self._diagnosis_of(exited) if wanted else exited.diagnosis
            age_s = self._loop.time() - at
            self._submit(WorkerExited(exited.local_rank, exited.exit_code, diagnosis, age_s))
            self._queue.task_done()

    async def _diagnosis_of(self, exited: WorkerExited) -> Diagnosis:
        try:
            async with asyncio.timeout(GIVEN_WITHIN_S):
                return await self._give(exited.local_rank, exited.exit_code)
        except TimeoutError:
            return exited.diagnosis
