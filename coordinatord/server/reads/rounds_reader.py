"""Finds the rounds of a job: the machine has those of a live run, and the store those of an ended run.

The machine drops the rounds of ended runs, which are rarely requested. A thousand jobs with fifty rounds each would
take 100 MB, and half a minute at each start of the daemon.
"""

from __future__ import annotations

from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.round_history import RoundHistory, rounds_of
from coordinatord.server.driver import Driver
from coordinatord.store.database_store import Store

CACHED_MAX = 32
"""How many ended runs are cached with their rounds, for people who look at a job again: 5 MiB, since 50 rounds with
long reasons take some 150 KiB."""


class RoundsReader:
    """Finds the last run of a job with its rounds."""

    def __init__(self, driver: Driver, store: Store) -> None:
        self._driver = driver
        self._store = store
        self._cached: dict[str, RoundHistory] = {}
        """The rounds of ended runs by the run's id, the most recently requested last."""

    async def find(self, job: str) -> tuple[Run, RoundHistory] | None:
        """Return a job's run, after `Driver.written`, and its rounds; None for an unknown job. Raises `StoreError`."""
        jobs = self._driver.machine.jobs
        while True:
            await self._driver.written()
            run = jobs.get(job)
            if run is None:
                return None
            rounds = run.durable.rounds
            if run.durable.state.ended:
                await self._driver.written()  # it may have ended during the first wait
                rounds = await self._read(run)
            if jobs.get(job) is run:  # otherwise another run has begun meanwhile
                return run, rounds

    async def _read(self, run: Run) -> RoundHistory:
        rounds = self._cached.pop(run.id, None)
        if rounds is None:
            rounds = rounds_of(await self._store.read_rounds(run.job, run.id))
        if rounds.current is None:  # otherwise the end of the run is not durable yet: the store has failed
            self._cached[run.id] = rounds
        if len(self._cached) > CACHED_MAX:
            del self._cached[next(iter(self._cached))]
        return rounds
