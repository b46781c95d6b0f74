"""Invariants of replicas: each divergence on record is one, and names the right rank in time.

If the job is to restart then, no later round resumes from a step that may be wrong, wherever it is. Only the host of a
rank that is known to be wrong is charged, and only if the job wants that. If training goes on, the newest right step on
the disk stays there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coordinatord.core.rounds.values.judged_host import Fault
from coordinatord.core.rounds.values.records import (
    HostJudged,
    Record,
    ReplicasDiverged,
    RoundFormed,
    RoundStopped,
    RunEnded,
)
from coordinatord.protocol.kept_state import KeptStep
from coordinatord.protocol.messages import OnDivergence
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.invariants.root_cause import RootCauseLaws
from tests.sim.kept_disk import KEEP
from tests.sim.workers import STEP_S, Round

HEARD_S = 3.0
"""How long after a digest all nodes of a calm round have reported it."""


class ReplicaLaws(Laws):
    """Watches which divergences are recorded, and what is done about them."""

    def __init__(self, facts: Facts, root_cause: RootCauseLaws) -> None:
        super().__init__(facts)
        self._root_cause = root_cause
        self.found: set[Round] = set()
        """The rounds of which a divergence was recorded."""
        self._undone: dict[Round, ReplicasDiverged] = {}
        """Those of these whose job goes back, as far as that is durable."""
        self._doubts: dict[str, tuple[KeptStep, float]] = {}
        """The first step that may be wrong of each run that goes on from there, and when that was recorded."""
        self.spared = 0
        """How often an old right step stayed on the disk."""
        self._last: ReplicasDiverged | None = None
        self.ended: set[Round] = set()
        """Those that were ended for it."""
        self.charged = 0
        """How often a host was charged with it."""

    def decided(self, records: Sequence[Record]) -> None:
        """Check each divergence against the bits that have flipped, and each round and charge against these."""
        for record in records:
            match record:
                case ReplicasDiverged():
                    self._check(record)
                    self._last = record
                case RoundStopped(condition="diverged"):
                    self._check_stop(record)
                case RoundFormed():
                    self._check_resumed(record)
                case RunEnded(condition="exhausted"):
                    goes_back = any(
                        run == record.run and number == self.world.daemon.machine.jobs[record.job].durable.round
                        for run, number in self._undone
                    )
                    self.check(
                        not (goes_back and "--max-futile-rounds" in record.reason),
                        "a job ends that goes back: %s",
                        record.reason,
                    )
                case HostJudged() if record.charges and record.charges[-1].fault is Fault.DIVERGENCE:
                    if not record.charges[-1].age_s:
                        self._check_charge(record)

    def durable(self, record: Record) -> None:
        """Note from which rounds a job goes back, and where it goes on from steps that may be wrong."""
        if isinstance(record, ReplicasDiverged) and record.back_to is not None:
            self._undone[record.run, record.round] = record
        elif isinstance(record, ReplicasDiverged):
            self._doubts.setdefault(record.run, (record.since, self.world.queue.now))
        elif isinstance(record, RoundFormed) and record.run in self._doubts:
            point, (since, _) = record.resume, self._doubts[record.run]
            if point is None or (point.disk is not None and point.disk.run != record.run) or point.at < since:
                del self._doubts[record.run]

    def set_back(self, records: Sequence[Record], now: float) -> None:
        """Forget what the store has forgotten."""
        self._undone.clear()
        self._doubts.clear()
        for record in records:
            self.durable(record)

    def deletes(
        self, run: str, there: Sequence[tuple[str, KeptStep]], gone: Collection[int], ordered_at: float
    ) -> None:
        """Check which of the steps that a node can read on the disk, the newest first, it deletes for a run."""
        since, recorded_at = self._doubts.get(run, (None, 0.0))
        if since is None or ordered_at < recorded_at + HEARD_S:
            return
        right = next((which for which, (of, at) in enumerate(there) if of == run and at < since), None)
        self.check(right not in gone, "%s is deleted, the last step before %s", right, since)
        self.spared += right is not None and right >= KEEP

    def _check_stop(self, record: RoundStopped) -> None:
        key = record.run, record.round
        self.check(self._policy is not OnDivergence.REPORT, "round %d is stopped, and only a report is wanted", key[1])
        self.check(key in self.found, "round %d is stopped, and its replicas are alike", key[1])
        self.ended.add(key)
        assert record.first_failure is not None
        self._root_cause.hung(key, record.first_failure.node, record.first_failure.failure.exit_code)

    def _check_resumed(self, record: RoundFormed) -> None:
        """Check that a round resumes from no step that some rank may have wrong, in this run or an earlier one."""
        point = record.resume
        if point is None:
            before = self._undone.get((record.run, record.round - 1))
            lost = before is None or self._is_disturbed((record.run, before.round))
            self.check(lost, "round %d begins anew, and was to go back", record.round)
            return
        run, at = (
            (record.run, point.at) if point.disk is None else (point.disk.run, KeptStep(point.disk.round, point.step))
        )
        for key, found in self._undone.items():
            if key[0] == run and at.round == found.round:
                [flipped] = self.world.trainings[key].replicas.flipped.values()
                self.check(
                    at.step < flipped, "round %d resumes from %s, and step %d is wrong", record.round, at, flipped
                )
                agreed = -1 if found.agreed is None else found.agreed
                self.check(at.step <= agreed, "round %d resumes from %s, after step %s", record.round, at, found.agreed)

    def _check_charge(self, record: HostJudged) -> None:
        self.charged += 1
        self.check(self._policy is OnDivergence.QUARANTINE, "%s is charged, and that is not wanted", record.node)
        assert self._last is not None
        key = self._last.run, self._last.round
        training, formed = self.world.trainings[key], self.facts.formed[key].nodes
        [rank] = training.replicas.flipped
        [own] = (each.node for each in formed if each.first_rank <= rank < each.first_rank + each.workers)
        hosts = [f"host-{host.name}" for host in training.hosts.values() if host.node == own]
        is_clear = sum(each.workers for each in formed) > 2
        is_right = is_clear and record.node in hosts
        self.check(is_right, "%s is charged with %r, and the rank is on %s", record.node, self._last.reason, own)

    @property
    def _policy(self) -> OnDivergence:
        return self.world.scenario.on_divergence

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
        if self._policy is OnDivergence.REPORT:
            self.check(record.back_to is None, "a job goes back that wants only a report: %s", record.reason)
        is_before = record.agreed is None or record.agreed < step
        self.check(is_before, "step %s was not alike: %s", record.agreed, record.reason)

    def _is_disturbed(self, key: Round) -> bool:
        since = self.world.trainings[key].replicas.flipped_at
        daemon = self.world.daemon
        return not daemon.up or daemon.paused or self.facts.upset_at >= since or not self.facts.was_quiet(key)

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
