"""Invariants of the coordinator's verdicts on why a round or a run ended, by what really happened.

They are checked by which workers failed by themselves, and whether anything else did. `decisions` has other decisions,
and `rounds` the budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinatord.core.journal import Decided
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Connected, Event, Reported
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import NodeSucceeded, Record, RoundEnded, RoundStopped, RunEnded
from coordinatord.hints.network import lost_connection
from coordinatord.protocol.exit_codes import ExitCode, shell_exit_code
from coordinatord.protocol.messages import Join, Observed, Phase, Result
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.workers import Round, Training

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host

ROUGHLY = 0.93
"""The least ratio of one time by two clocks."""

ALIKE_S = 0.05
"""Two readings of the coordinator's clock in the same moment differ by less."""

REMEMBERED_S = 0.5
"""The time beyond the collateral window within which a loss may excuse a failure: until the messages of both arrive."""


class RootCauseLaws(Laws):
    """Watches the verdicts of one world."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._culprits: dict[Round, set[str]] = {}
        """Nodes of which a worker failed by itself."""
        self._failed_at: dict[Round, dict[str, float]] = {}
        """When a worker of each of these first failed, in the queue's `now`."""
        self._complained: dict[Round, set[str]] = {}
        """Nodes that reported a worker's failure, other than a lost connection, to this life of the coordinator."""
        self._vague: set[Round] = set()
        """Rounds in which a worker failed by itself while its node could not be heard."""
        self._to_charge: set[Round] = set()
        """Rounds that broke by a failure alone."""
        self._absent: dict[Round, set[str]] = {}
        """Nodes whose workers ended while there was no coordinator, and that have not joined since; by round."""
        self._cut_off: set[Round] = set()
        """Rounds that broke because a node ended its workers, out of touch for too long."""
        self._done: dict[Round, set[str]] = {}
        """Nodes that have succeeded, by round: their later fate excuses no failure."""
        self._at_fault: set[Round] = set()
        """Rounds in which a worker failed by itself before its node was asked to end it."""
        self._dated: dict[tuple[str, int, str], float] = {}
        """When a node's worker failed, by the earliest date of its reports; keyed by run, round and node."""
        self.early_named = 0
        """How many rounds were charged to a worker that had exited with 0 too early."""
        self._left: dict[Round, str] = {}
        """The node of a worker that has exited with 0 before the training was done."""
        self._codes: dict[tuple[str, int, str], int] = {}
        """The exit code of that worker."""

    # Evidence

    def _note_failure(self, node: str, observed: Observed) -> None:
        if observed.failure is not None:
            key = observed.run, observed.round, node
            at = self.world.daemon.clock.read() - observed.failure.age_s
            self._dated[key] = min(at, self._dated.get(key, at))  # a report may have been under way for long
            self._codes[key] = observed.failure.exit_code  # of another worker, if a connection was lost first
            if not lost_connection(observed.failure):
                self._complained.setdefault((observed.run, observed.round), set()).add(node)

    def note_event(self, event: Event) -> None:
        """Note a node's report of a failure, when the coordinator receives it."""
        sessions = self.world.daemon.machine._sessions
        if isinstance(event, Connected):
            self._note_failure(event.join.node, event.join.observed)
        elif isinstance(event, Reported) and event.session in sessions:
            self._note_failure(sessions[event.session][1].node, event.observed)

    def decided(self, records: Sequence[Record]) -> None:
        """Note which nodes have succeeded; check verdicts."""
        run = self.world.daemon.machine.jobs.get("job")
        for record in records:
            if run is not None and run.id == record.run:
                if isinstance(record, RoundStopped):
                    self._judge_evidence(run, record)
                elif isinstance(record, RunEnded):
                    self._judge_outcome(run, record)
            if isinstance(record, NodeSucceeded):
                self._done.setdefault((record.run, record.round), set()).add(record.node)
            if isinstance(record, RoundEnded) and record.report is not None and self._is_prompt:
                self._judge_first(record, record.report.node)

    def _judge_first(self, record: RoundEnded, charged: str) -> None:
        """Check that of all nodes that reported a failure, the charged one failed first.

        Each node reports by its own clock how long ago its failure was.
        """
        key = (record.run, record.round)
        failed_at, complained = self._failed_at.get(key, {}), self._complained.get(key, ())
        own = failed_at.get(charged, -math.inf)  # one that was found to hang failed before all
        age_s = self.world.queue.now - min(failed_at.values(), default=0.0)
        unsure_s = ALIKE_S + 2 * self.world.scenario.skew * age_s
        earlier = [node for node, at in failed_at.items() if node in complained and at < own - unsure_s]
        self.check(not earlier, "round %d was charged to %s, and %s failed before", record.round, charged, earlier)

    def restored(self, machine: Coordinator, past: Sequence[Decided]) -> None:
        """Note that a coordinator has started, which has received nothing yet."""
        self._dated.clear()
        self._complained.clear()

    def failed(self, host: Host, key: Round) -> None:
        """Note that a worker fails by itself, which is to be charged if nothing else happens."""
        first = key not in self._culprits
        self._culprits.setdefault(key, set()).add(host.node)
        if not host.paused:  # its nodeclient would date the failure when it goes on
            self._failed_at.setdefault(key, {}).setdefault(host.node, self.world.queue.now)
        if self.facts.is_hidden(host):
            self._vague.add(key)
        if host.agent is not None and host.agent.phase is Phase.RUNNING:
            self._at_fault.add(key)
        training = self.world.trainings.get(key)
        if (
            first
            and training is not None
            and not training.broken
            and key in self.facts.formed
            and self.facts.was_quiet(key)
        ):
            policy = self.world.scenario.policy
            # A node that dies counts as silent since its last message, up to a heartbeat before.
            wait = (policy.collateral_s + policy.heartbeat_s) / ROUGHLY + REMEMBERED_S
            self.world.queue.plan(wait, self._look_again, key)

    def left_early(self, host: Host, key: Round) -> None:
        """Note that a worker exits with 0 too early, for lack of which others fail."""
        self.facts.genuine.add(key)
        self._left[key] = host.node

    def hung(self, key: Round, node: str, exit_code: int) -> None:
        """Note that a worker was found to hang, which counts as a failure from now on."""
        self.facts.genuine.add(key)
        self._culprits.setdefault(key, set()).add(node)
        self._codes[(*key, node)] = exit_code

    @property
    def _is_prompt(self) -> bool:
        """Whether the first failure is also reported first: peers of a failed worker fail 10 ms later."""
        network = self.world.scenario.network
        slow = network.harsh or network.spike_chance or network.spread_s > 0.01 or self.world.scenario.skew > 0.001
        return not slow and not self.world.faults["network slow"]

    def _look_again(self, key: Round) -> None:
        run = self.facts.replica.jobs.get("job")
        stopping = run is not None and (run.id, run.round) == key and run.state is State.STOPPING
        quiet = key not in self.facts.disturbed | self.facts.stopped_on_purpose and self.facts.was_quiet(key)
        if stopping and quiet and self.world.daemon.idle:
            self._to_charge.add(key)

    def gone(self, host: Host) -> None:
        """Note that workers of a host are gone, so that their peers fail or hang."""
        if not self.world.daemon.up and self._is_prompt:
            self._absent.setdefault(host.workers.round, set()).add(host.node)
        training, agent = host.workers.training, host.agent
        if training is not None and not training.broken and agent is not None and agent._group.ending.cut_off:
            self._cut_off.add(training.key)

    def joined(self, join: Join) -> None:
        """Note that a node has come, or come back."""
        self._absent.get((join.observed.run, join.observed.round), set()).discard(join.node)

    # Verdicts

    def _judge_evidence(self, run: Run, record: RoundStopped) -> None:
        """Check that the first failure is recorded with the end of a round: a crash forgets all others."""
        key = (record.run, record.round)
        if (run.id, run.durable.round, run.durable.state) == (*key, State.STOPPING):
            for node, failure in run.evidence.failures.items():
                dated = self._dated.get((*key, node), failure.at)
                self.check(abs(failure.at - dated) < ALIKE_S, "%s failed %.2f s earlier", node, failure.at - dated)
            known = record.first_failure is not None or not run.evidence.failures
            self.check(known, "what failed in round %d is not recorded", record.round)
        if record.first_failure is not None:
            earliest = min((at for (*round_, _), at in self._dated.items() if tuple(round_) == key), default=math.inf)
            at = self.world.daemon.clock.read() - record.first_failure.failure.age_s
            self.check(at <= earliest + ALIKE_S, "the first failure of round %d is not recorded", record.round)

    def _judge_outcome(self, run: Run, record: RunEnded) -> None:
        if record.outcome.result is not Result.FAILED or record.outcome.exit_code == ExitCode.TEMPFAIL:
            return
        used, most = run.durable.restarts_used, run.spec.max_restarts
        if record.outcome.exit_code == ExitCode.NO_PROGRESS:
            self.check(self.world.scenario.max_futile_rounds > 0, "the run has ended for lack of progress")
            return
        self.check(used == most, "the run has failed with %d of %d restarts used", used, most)
        key = (run.id, run.durable.round)
        culprits = [(*key, node) for node in self._culprits.get(key, ())]
        codes = {shell_exit_code(self._codes[culprit]) for culprit in culprits if culprit in self._codes}
        vague = (
            key in self.facts.unseen | self._vague
            or not self._is_prompt
            or self.facts.life_of_stop.get(key) != self.world.daemon.life
        )
        known = vague or not codes or record.outcome.exit_code in codes
        self.check(known, "the run has failed with %d, its workers with %s", record.outcome.exit_code, codes)

    def durable(self, record: Record) -> None:
        """Check the verdict on a round or a run."""
        if isinstance(record, RoundEnded):
            self._judge_ended(record)
        elif isinstance(record, RunEnded) and record.outcome.result is Result.SUCCEEDED:
            run = self.facts.replica.jobs[record.job]
            recorded = all(member.succeeded for member in run.members.values() if member.in_round)
            self.check(recorded, "a run has succeeded, and no record says that all its nodes have")

    def _judge_alike(self, record: RoundEnded, training: Training) -> None:
        """Check that an error of all workers is named as that of all, if they wrote it; a crash as that of no more."""
        key, report = training.key, record.report
        workers = sum(own.workers for own in self.facts.formed[key].nodes)
        if report is None or training.done_at < math.inf or not self.facts.was_quiet(key):
            return
        self.check(report.same_error_count < workers, "%d others have failed alike", report.same_error_count)
        says_all = record.reason.startswith(f"all {workers} ranks failed with the same error")
        due = workers > 1 and report.failure.error
        self.check(says_all or not due, "all %d workers failed alike, and the reason is %s", workers, record.reason)

    def _judge_ended(self, record: RoundEnded) -> None:
        key = (record.run, record.round)
        restarted = self.facts.life_of_stop.get(key) != self.world.daemon.life and key in self.facts.lost_of
        due = key in self._to_charge and not restarted
        self.check(record.charged or not due, "a failure in round %d is not charged: %s", record.round, record.reason)
        same_life = self.facts.life_of_stop.get(key) == self.world.daemon.life
        self.check(record.charged == (record.report is not None), "round %d is charged without a cause", record.round)
        if record.report is not None and key not in self.facts.unseen | self._vague and self._is_prompt and same_life:
            named = record.report.node in self._culprits.get(key, ()) or key in self._left
            self.check(named, "round %d was charged to another: %s", record.round, record.reason)
        excusable = not record.charged and key in self.facts.lost_of
        self.check(record.excused is None or excusable, "no loss excuses an error in round %d", record.round)
        training = self.world.trainings.get(key)
        if training is not None and training.fails_alike and same_life and self._is_prompt:
            self._judge_alike(record, training)
        says_left, left = "exited with 0" in record.reason, self._left.get(key)
        self.early_named += says_left
        self.check(left or not says_left, "nobody had left round %d early: %s", record.round, record.reason)
        lost_it = record.report is not None and lost_connection(record.report.failure)
        named = says_left and f"on node {left} exited" in record.reason
        self.check(
            left is None or not lost_it or named,
            "who left round %d early is not named: %s",
            record.round,
            record.reason,
        )
        excused = (
            key in self.facts.stopped_on_purpose
            and key not in self.facts.genuine | self.facts.lost_of | self.facts.disturbed
        )
        self.check(not (record.charged and excused), "round %d was charged for its stop on purpose", record.round)
        done = frozenset(self._done.get(key, ()))
        at_fault = bool(done) and key in self._at_fault - self.facts.stopped_on_purpose - self.facts.disturbed
        due = at_fault and same_life and self.facts.was_quiet(key, but_for=done)
        self.check(
            record.charged or not due, "a failure in round %d is excused by a node that had done its part", record.round
        )
        unheard = bool(self._absent.get(key)) and key not in self.facts.genuine
        self.check(not (record.charged and unheard), "round %d was charged for a node that died unheard", record.round)
        cut_off = key in self._cut_off - self.facts.genuine
        self.check(not (record.charged and cut_off), "round %d was charged for a node out of touch", record.round)
