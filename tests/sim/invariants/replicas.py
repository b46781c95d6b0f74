"""Invariants of replicas: each divergence that is recorded is one, names the right rank, and comes in time."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.rounds.values.records import Record, ReplicasDiverged
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.workers import STEP_S, Round

HEARD_S = 3.0
"""How long after a digest all nodes of a calm round have reported it."""


class ReplicaLaws(Laws):
    """Watches which divergences are recorded."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.found: set[Round] = set()
        """The rounds of which a divergence was recorded."""

    def decided(self, records: Sequence[Record]) -> None:
        """Check each divergence against the bits that have flipped."""
        for record in records:
            if isinstance(record, ReplicasDiverged):
                self._check(record)

    def _check(self, record: ReplicasDiverged) -> None:
        key = record.run, record.round
        self.found.add(key)
        flipped = self.world.trainings[key].replicas.flipped
        self.check(flipped, "no bit has flipped: %s", record.reason)
        [(rank, step)] = flipped.items()
        ranks = sum(each.workers for each in self.facts.formed[key].nodes)
        right = () if ranks == 2 else (rank,)  # of two, nobody can say which is wrong
        self.check(record.ranks == right, "rank %d has flipped: %s", rank, record.reason)
        in_time = step <= record.step < step + 2 * self.world.scenario.digest_steps
        self.check(in_time or self._is_disturbed(key), "step %d is not the first: %s", record.step, record.reason)
        is_before = record.agreed is None or record.agreed < step
        self.check(is_before, "step %s was not alike: %s", record.agreed, record.reason)

    def _is_disturbed(self, key: Round) -> bool:
        since = self.world.trainings[key].replicas.flipped_at
        return self.facts.upset_at >= since or not self.facts.was_quiet(key)

    def look_for(self, key: Round) -> None:
        """Check a round in which a bit has flipped, once that has to be known."""
        training = self.world.trainings[key]
        ranks = sum(each.workers for each in self.facts.formed[key].nodes)
        goes_on = not training.broken and training.done_at > self.world.queue.now and not training.stalls
        if training.replicas.flipped and goes_on and ranks > 1 and not self._is_disturbed(key):
            self.check(key in self.found, "the divergence of %s is not found", key)

    def known_within(self) -> float:
        """Return the seconds after a flip within which a calm round knows of it."""
        return 2 * self.world.scenario.digest_steps * STEP_S + HEARD_S
