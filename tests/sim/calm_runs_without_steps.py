"""Plays healthy trainings whose scripts report no steps: the alarm goes by their collectives, and must end none.

Some scripts do not use workerlib at all. The others name the phases in which a worker waits for something else than a
collective.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinatord.core.rounds.events import Compared, NodeArrivals
from coordinatord.core.watching.arrivals import ARRIVALS_MIN, EVERY_S, ask_at, can_be_compared
from coordinatord.core.watching.worker_sources import worker_sources
from coordinatord.protocol.arrival_messages import GroupArrivals, WorkerArrivals, pack_ages
from coordinatord.protocol.messages import Observed
from tests.sim.calm_runs import CalmRun, Node
from tests.sim.calm_training import CalmTraining, Stretch

AT_ONCE_S = 1e-6


class UnnamedTraining(CalmTraining):
    """A training that reports no steps: its progress shows in the times at which workers came to collectives."""

    def arrivals(self, rank: int, now: float, most: int) -> GroupArrivals:
        """Return when a worker came to the last collectives."""
        stretch = self.stretch_at(now)
        ages_s = _ages_in(stretch, rank, now)
        begun = stretch.first + len(ages_s)
        while len(ages_s) < most and stretch.first > 1:
            stretch = self.stretch_at(stretch.begin - AT_ONCE_S)
            ages_s = _ages_in(stretch, rank, now) + ages_s
        return GroupArrivals("gloo default_pg", begun - len(ages_s[-most:]), pack_ages(ages_s[-most:]))


def _ages_in(stretch: Stretch, rank: int, now: float) -> list[float]:
    """Return how long ago a worker came to the collectives of a stretch."""
    came = (stretch.begin + done * stretch.each_s + stretch.arrive_s[rank] for done in range(stretch.times))
    return [now - at for at in came if at <= now]


class UnnamedRun(CalmRun):
    """One training, whose nodes report no steps."""

    drawn = UnnamedTraining

    def play(self) -> None:
        """Play the run. Raises `FalseAlarmError`."""
        self._queue.after(EVERY_S, self._compare)
        super().play()

    def _report(self, node: Node, *, beat: bool = False) -> Observed:
        return replace(node.observed, beat=beat, section=self._section(node) if self._is_begun else None)

    def _compare(self) -> None:
        """Read when the workers came to collectives, as `server/reads/arrival_reads.py` does."""
        run = None if self._coordinator is None else self._coordinator.jobs.get("default")
        if run is None or not can_be_compared(run):
            self._queue.after(EVERY_S, self._compare)
            return
        now, training = self._queue.now - self._begun_at, self._training
        assert isinstance(training, UnnamedTraining)
        self.counts["questions"] += 1
        arrivals = []
        for source in worker_sources(run):
            if source.session is None:
                continue
            workers = tuple(
                WorkerArrivals(rank, (training.arrivals(rank, now, ARRIVALS_MIN),)) for rank in source.ranks
            )
            arrivals.append(NodeArrivals(source.node, self._queue.now, 0.0, self._queue.now, workers))
        self._handle(Compared(run.id, run.durable.round, tuple(arrivals)))
        self._queue.after(ask_at(run, self._begun_at, self._queue.now) - self._queue.now, self._compare)
