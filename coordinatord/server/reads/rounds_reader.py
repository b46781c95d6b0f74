"""Finds the rounds of one job: those of a run that has ended are read from the store.

The machine keeps the rounds of live runs only. A thousand jobs that are over, with fifty rounds each, would take a
hundred megabytes, and half a minute at each start of the daemon; they are rarely requested.
"""

from __future__ import annotations

from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.round_history import RoundHistory, rounds_of
from coordinatord.server.driver import Driver
from coordinatord.store.interface import Store

KEPT_MAX = 32
"""The most runs whose rounds are kept after a request: people who look at a job look again. 50 rounds with long
reasons are some 150 KiB."""


class RoundsReader:
    """Finds the runs of jobs, with their rounds."""

    def __init__(self, driver: Driver, store: Store) -> None:
        self._driver = driver
        self._store = store
        self._kept: dict[str, RoundHistory] = {}
        """The rounds of runs that have ended, by the run's id; the one that was requested last comes last."""

    async def find(self, job: str) -> tuple[Run, RoundHistory] | None:
        """Return the run of a job as it is now, as far as it is durable, and its rounds; None if there is no such job.

        Raises `StoreError`.
        """
        jobs = self._driver.machine.jobs
        while True:
            await self._driver.written()
            run = jobs.get(job)
            if run is None:
                return None
            rounds = await self._read(run) if run.durable.state.ended else run.durable.rounds
            if jobs.get(job) is run:  # otherwise another run has begun meanwhile
                return run, rounds

    async def _read(self, run: Run) -> RoundHistory:
        rounds = self._kept.pop(run.id, None)
        if rounds is None:
            rounds = rounds_of(await self._store.read_rounds(run.job, run.id))
        if rounds.current is None:  # the store fails if it does not have the end of the run yet
            self._kept[run.id] = rounds
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        return rounds
