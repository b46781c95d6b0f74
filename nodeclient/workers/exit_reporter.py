"""Turns the exits of workers into events, in order, with a diagnosis of the first failures.

A diagnosis takes a moment, since the worker's last output is in flight and files have to be read. The order of exits
must not depend on that. So exits are queued, and each event carries the age of its exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from signal import Signals

from msgspec.structs import replace

from coordinatord.protocol.fields import CONSEQUENCES_MAX
from nodeclient.core.events import CollectiveFailed, Diagnosis, Event, WorkerExited, WorkerLeft

DIAGNOSED_WITHIN_S = 3.0
"""The timeout of a diagnosis, which takes milliseconds. If it hangs, it must not delay the end of the other workers.

The last output takes up to `output.ANSWER_WITHIN_S` of it; then the error file and the kernel's counters are read."""

DIAGNOSES_MAX = 1 + CONSEQUENCES_MAX
"""How many failures of a round are diagnosed: the first one, and as many consequences as a report names."""

_SIGNALS_FROM = 128
"""The lowest exit code by which a shell reports a signal."""

Diagnose = Callable[[int, int, int], Awaitable[Diagnosis]]
"""Diagnoses a worker by its local rank, its exit code as in `subprocess`, and its process id."""


class ExitReporter:
    """Reports the exits of one node's workers to the agent by `submit`."""

    def __init__(self, submit: Callable[[Event], None]) -> None:
        self._diagnose: Diagnose | None = None
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self._queue = asyncio.Queue[tuple[WorkerExited | CollectiveFailed | WorkerLeft, float, Diagnose | None]]()
        """The events to submit, each with the time at which it happened and the function that completes it, if any."""
        self._diagnoses_left = 0
        """How many more failures to diagnose; `DIAGNOSES_MAX` while none has failed in this round."""
        self._are_stopping = False

    def begin(self, diagnose: Diagnose) -> None:
        """Begin a round, in which `diagnose` is called for the first failures."""
        self._diagnose = diagnose
        self._diagnoses_left, self._are_stopping = DIAGNOSES_MAX, False

    def expect_exits(self, *, planned: bool) -> None:
        """Record that the workers are being stopped.

        Exits that follow a planned stop are diagnosed only if one had failed before.
        """
        self._are_stopping = True
        if planned and self._diagnoses_left == DIAGNOSES_MAX:  # none has failed
            self._diagnoses_left = 0

    def record_exit(self, local_rank: int, exit_code: int, pid: int, over_s: float) -> None:
        """Record that a worker has just ended, whose program had been over for `over_s`."""
        # A worker that is being stopped and has an exit code of its own was about to fail. One that SIGTERM ended
        # may have been about to fail, too: after an exception, it takes a while to exit.
        may_have_failed = not self._are_stopping or 0 < exit_code < _SIGNALS_FROM or exit_code == -Signals.SIGTERM
        diagnose = None
        if exit_code != 0 and may_have_failed and self._diagnoses_left > 0:
            diagnose = self._diagnose
            self._diagnoses_left -= 1
        exited = WorkerExited(local_rank, exit_code, Diagnosis(pid), over_s=over_s)
        self._queue.put_nowait((exited, self._loop.time(), diagnose))

    def record_report(self, report: CollectiveFailed | WorkerLeft) -> None:
        """Record a worker's report that a collective has failed, or that the worker has left its round after that.

        Exits that the event loop sees at the same time come first, since one of them may be the cause.
        """
        self._loop.call_soon(self._queue.put_nowait, (report, self._loop.time(), None))

    async def await_reported(self) -> None:
        """Wait until all exits so far have been reported."""
        await self._queue.join()

    async def run(self) -> None:
        """Report the exits until cancelled."""
        while True:
            end, at, diagnose = await self._queue.get()
            if isinstance(end, WorkerLeft):
                self._submit(end)
            else:
                if diagnose is not None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(DIAGNOSED_WITHIN_S):
                            found = await diagnose(end.local_rank, end.exit_code, end.diagnosis.pid)
                            end = replace(end, diagnosis=found)
                self._submit(replace(end, age_s=self._loop.time() - at))
            self._queue.task_done()
