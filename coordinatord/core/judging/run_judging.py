"""Implements `JudgingWing`, the kernel's view of the judging of hosts: charges them, and has nodes tested in pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinatord.core.judging.judgements import act_on, act_on_preflight, judge
from coordinatord.core.judging.preflight import Preflight
from coordinatord.core.rounds.policy import PreflightWhen
from coordinatord.core.rounds.queries.conditions import NOW, full, settled
from coordinatord.core.rounds.state.cluster import Cluster
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.values.admin_requests import AdminResult, Request
from coordinatord.core.rounds.values.charges import Judge
from coordinatord.core.rounds.values.records import HostJudged, Record
from coordinatord.protocol.messages import Cause, CheckResult, Launcher, Report

HOLD_S = 15.0
"""How long a round waits for a preflight on suspicion: two turns of good nodes take 8 s."""

IDLE_FOR_S = 60.0
"""How long nodes wait before they are tested without a request: nodes that come together are tested together."""

SUSPECT_ROUNDS = 2
"""How many rounds in a row have to fail of the network or a hang before nodes are tested: one proves little."""

RETEST_AFTER_S = 1_800.0
"""The pause before nodes are tested again without a request. A mended host is let in soon, and the cost is small."""

_SUSPECT_CAUSES = {Cause.NETWORK, Cause.HANG}


class RunJudging(Preflight):
    """Judges the hosts of one run, as `JudgingWing` says."""

    _suspect_rounds = 0
    """How many rounds in a row have failed of the network or a hang, since the last preflight for that."""

    def judge(self, report: Report | None, cluster: Cluster, now: float) -> Iterable[HostJudged]:
        """Judge the host that ended the round, and count the rounds in a row that a bad host may have ended."""
        self._suspect_rounds = self._suspect_rounds + 1 if report is not None and report.cause in _SUSPECT_CAUSES else 0
        return judge(self.run, report, cluster.durable, now)

    def check(self, member: Member, cluster: Cluster, now: float) -> Iterable[HostJudged]:
        """Quarantine the host of a node whose health check failed, or let it in again after one that passes."""
        check = member.observed.check
        if check is None or check.result is CheckResult.UNKNOWN:
            return ()
        says, is_bad = f"its health check {check.says}", check.result is CheckResult.BAD
        return act_on(self.run, member.offer.host, says, Judge.CHECK, cluster.durable, now, is_bad=is_bad)

    def obstacle(self) -> str:
        """Say for which preflight the next round waits."""
        run, holds = self.run, self.holds_until > self.run.durable.entered_at
        return f"nodes are tested in pairs before round {run.durable.round + 1}: {self.why}" if holds else ""

    def begin_preflight(self, request: Request, now: float) -> tuple[AdminResult, str, Sequence[Record]]:
        """Begin a preflight of all nodes without workers, if there are two."""
        run, members = self.run, self.testable
        if not self.is_over:
            return AdminResult.NOTHING, f"a preflight of job {run.job} is under way already: {self.why}", ()
        if len(members) < 2 or run.spec.launcher is Launcher.TORCHRUN:  # noqa: PLR2004 - a pair
            why = "it needs two nodes without workers, such as spares"
            if run.spec.launcher is Launcher.TORCHRUN:
                why = "torchrun starts the workers of its nodes, and tests none"
            return AdminResult.REFUSED, f"job {run.job} cannot have a preflight now: {why}", ()
        text = f"{len(members)} nodes of job {run.job} are tested in pairs"
        if request.dry_run:
            return AdminResult.DONE, text, ()
        return AdminResult.DONE, text, (self.begin(members, request.attribution("asked for"), now),)

    def next_at(self) -> float | None:
        """Return when a turn is over, or a preflight begins by itself: before a round on suspicion, else when idle."""
        if not self.is_over:
            return self.ends_at if self.awaited else NOW
        return self._suspicion_due() if self.run.durable.state is State.FORMING else self._idle_due()

    def act(self, cluster: Cluster, now: float) -> Iterable[Record]:
        """End a turn, or begin a preflight; if no node on an idle host needs one, look again later."""
        if not self.is_over:
            return self._end_turn(cluster, now)
        if self.run.durable.state is State.FORMING:
            _, why = self._suspicion() or (NOW, "")
            self._suspect_rounds = 0
            return (self.begin(self.testable, why, now, holds_until=now + HOLD_S),)
        # A job whose round is over mostly begins the next one soon, on the hosts of the last.
        working = [run.members.get(node) for run in cluster.live for node in run.durable.order]
        busy = {member.offer.host for member in working if member is not None}
        members = [member for member in self.testable if member.offer.host not in busy]
        if _need_test(members):
            return (self.begin(members, "nodes wait on hosts without workers", now),)
        self.idle_at = now + IDLE_FOR_S
        return ()

    def _suspicion_due(self) -> float | None:
        """Return from when nodes are suspect and a round could be formed, so that they are tested first."""
        run = self.run
        wanted = run.policy.preflight is PreflightWhen.SUSPICION and run.spec.launcher is not Launcher.TORCHRUN
        suspicion = self._suspicion() if wanted else None
        if suspicion is None or len({member.offer.host for member in self.testable}) == 1:
            return None
        times = [at for at in (full(run), settled(run)) if at is not None]
        return max(suspicion[0], min(times)) if times else None

    def _suspicion(self) -> tuple[float, str] | None:
        """Return from when nodes of the last rounds are suspect, and why; None if none is.

        Two rounds in a row have failed of the network or a hang, or a node was late in the last one. A node is not
        tested again for its lateness within half an hour: its worker may just have more to do than others.
        """
        if self._suspect_rounds >= SUSPECT_ROUNDS:
            return NOW, "the last two rounds have failed of the network or a hang"
        node, late = self.run.watching.late()
        if node not in {member.node for member in self.testable}:
            return None
        return self.ends_at + RETEST_AFTER_S if node in self.members else NOW, f"in the last round, {late}"

    def _idle_due(self) -> float | None:
        """Return from when waiting nodes are to be tested: one was never tested, or its host is quarantined."""
        run = self.run
        may_test = run.policy.preflight is not PreflightWhen.ASKED and run.spec.launcher is not Launcher.TORCHRUN
        if not may_test or run.durable.state is not State.RUNNING:
            return None
        members = self.testable if run.roll.count(MemberState.READY, MemberState.QUARANTINED) > 1 else []
        if not _need_test(members):
            return None
        waited = max(member.readiness.arrived_at for member in members) + IDLE_FOR_S
        return max(waited, self.idle_at, self.ends_at + RETEST_AFTER_S)

    def _end_turn(self, cluster: Cluster, now: float) -> Iterable[Record]:
        """Record the results of a turn; begin the next one, or judge the hosts if there is none."""
        self.search.end_turn(self.results)
        self.begin_turn(now)
        if self.is_over:
            busy = {member.offer.host for run in cluster.live for member in run.roll.inside}
            yield from act_on_preflight(self.run, self.search, busy, cluster.durable, now)
            yield self.end_record(self.search.verdict)


def _need_test(members: Sequence[Member]) -> bool:
    """Whether these members are on several hosts, and one was never tested, or its host is quarantined."""
    is_new = any(member.observed.pair is None or member.readiness.quarantined for member in members)
    return is_new and len({member.offer.host for member in members}) > 1
