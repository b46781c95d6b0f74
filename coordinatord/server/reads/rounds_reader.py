"""Finds the rounds of one job: those of a live run in the machine, those of an ended run in the store.

Rounds of ended runs are rarely requested. In the machine, a thousand jobs with fifty rounds each would take a hundred
megabytes, and half a minute at each start of the daemon.
"""

from __future__ import annotations

from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.round_history import RoundHistory, rounds_of
from coordinatord.server.driver import Driver
from coordinatord.store.interface import Store

KEPT_MAX = 32
"""The size of the cache of runs with their rounds: people who look at a job look again. 50 rounds with long reasons are
some 150 KiB."""


class RoundsReader:
    """Finds the runs of jobs, with their rounds."""

    def __init__(self, driver: Driver, store: Store) -> None:
        self._driver = driver
        self._store = store
        self._kept: dict[str, RoundHistory] = {}
        """The rounds of ended runs, by the run's id, the latest request last."""

    async def find(self, job: str) -> tuple[Run, RoundHistory] | None:
        """Return the durable state of a job's run, and its rounds; None if there is no such job.

        Raises `StoreError`.
        """
        jobs = self._driver.machine.jobs
        while True:
            await self._driver.written()
            run = jobs.get(job)
            if run is None:
                return None
            rounds = await self._read(run) if run.durable.state.ended else run.durable.rounds
            if jobs.get(job) is run:  # else another run has begun meanwhile
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
