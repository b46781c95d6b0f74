"""Invariants of judgements on hosts: each has its cause, and no good host is kept out of a round for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.judged_host import Judge, JudgedHost
from coordinatord.core.rounds.values.records import (
    HostJudged,
    NodeJoined,
    NodeLost,
    Record,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from coordinatord.protocol.messages import CheckResult, HangKind, Phase, Report
from tests.sim.host import GFLOPS, Host
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.worker_looks import TORCH_FRAME
from tests.sim.workers import Round

PASSES = {CheckResult.GOOD, CheckResult.WARNING}


class JudgementLaws(Laws):
    """Watches which hosts are charged and quarantined, and which rounds have them."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.quarantined = 0
        """How many hosts were quarantined by the coordinator itself."""
        self._charged: set[str] = set()
        """The hosts that were ever charged."""
        self._host_of: dict[tuple[str, int], str] = {}
        """The host of each process of a node: two hosts may claim one name."""
        self.checked = 0
        """How many of these for a failed health check."""
        self._decided: dict[str, HostJudged] = {}
        """The last judgement on each host in this life of the coordinator; it may not be durable yet."""
        self._causes: set[str] = set()
        """The hosts of the failure that ended the last round, and of the nodes that it had lost."""
        self._before: set[str] = set()
        """Those of the round before: a coordinator that dies may judge it once more in its next life."""
        self._failed_on: dict[Round, set[str]] = {}
        """The nodes of which a worker failed by itself before it was asked to end."""

    def crashed(self) -> None:
        """Forget what may not be durable."""
        self._decided.clear()

    def failed(self, host: Host, key: Round) -> None:
        """Note the node of a worker that fails by itself."""
        if host.agent is not None and host.agent.phase is Phase.RUNNING:
            self._failed_on.setdefault(key, set()).add(host.node)

    def decided(self, records: Sequence[Record]) -> None:
        """Check each judgement by the records before it, and each round by the judgements."""
        for record in records:  # those of a run that ends come after the judgement
            if isinstance(record, NodeJoined):
                self._host_of[record.node, record.incarnation] = record.offer.host
            elif isinstance(record, NodeLost):
                self._causes.add(self._host_of[record.node, record.incarnation])
            elif isinstance(record, RoundEnded | RunEnded) and record.report is not None:
                self._note_cause(record.report, self.world.daemon.machine.jobs[record.job])
        for record in records:
            if isinstance(record, HostJudged):
                self._check_judgement(record)
            elif isinstance(record, RoundFormed):
                self._check_round(record)
                self._before, self._causes = self._causes, set()

    def _note_cause(self, report: Report, run: Run) -> None:
        """Note the host that a round may be charged to.

        A hang in code of the script may be that of a host only if a round can do without the host, or if the worker
        waits for a disk. A worker without a stack may hang in any code. A crash that came on several hosts at once is
        that of none.
        """
        key = (run.id, report.round)
        fails_alike = key in self.world.trainings and self.world.trainings[key].fails_alike
        if fails_alike and len(self._failed_on.get(key, ())) > 1 and self.facts.was_quiet(key):
            return
        hang = report.failure.hang
        others = (each for each in run.members.values() if each.offer.host != report.host and not each.leaves)
        frames, message = report.failure.last_lines, report.failure.message
        awaits_host = not frames or TORCH_FRAME in frames or "waits for a disk" in message
        is_of_script = hang in {HangKind.STUCK, HangKind.BUSY} and not awaits_host
        if not is_of_script or sum(1 for _ in others) >= run.spec.nodes_min:
            self._causes.add(report.host)

    def _check_judgement(self, record: HostJudged) -> None:
        hosts: Mapping[str, JudgedHost | HostJudged] = {**self.facts.replica.cluster.hosts, **self._decided}
        known = hosts.get(record.node)
        if record.charges:
            self._charged.add(record.node)
        self._decided[record.node] = record
        before = 0 if known is None else len(known.charges)
        grown = len(record.charges) > before
        self.check(
            not grown or record.node in self._causes | self._before, "%s is charged without a cause", record.node
        )
        if "pardoned" in record.reason:
            self.check(not record.charges and not record.quarantined, "%s is pardoned, and still charged", record.node)
        elif known is not None and known.by is Judge.CHARGES and known.quarantined and not record.quarantined:
            self.check(len(self._charged) > 1, "%s is let in, and no other host was charged", record.node)
        was_wanted = known is not None and known.by is Judge.OPERATOR
        ends = bool(was_wanted and not record.quarantined)
        self.check(not ends or "pardoned" in record.reason, "%s is let in against the operator's word", record.node)
        checks = {each.observed.check.result for each in self._members(record.node) if each.observed.check is not None}
        figures = {each.observed.pair.gflops for each in self._members(record.node) if each.observed.pair is not None}
        before_by = None if known is None else known.by
        if record.by is Judge.CHECK is not before_by:
            self.checked += 1
            self.check(CheckResult.BAD in checks, "no health check of %s has failed", record.node)
        if record.by is Judge.PREFLIGHT is not before_by:
            self.check(figures != {GFLOPS}, "%s was slow in no test", record.node)
        if "let in again" in record.reason:
            by_check, by_preflight = before_by is Judge.CHECK, before_by is Judge.PREFLIGHT
            passes = (by_check and checks & PASSES) or (by_preflight and GFLOPS in figures)
            self.check(passes, "nothing lets %s in", record.node)
        if record.quarantined and record.by is not Judge.OPERATOR and (known is None or not known.quarantined):
            self.quarantined += 1
            members = [each for run in self.world.daemon.machine.jobs.values() for each in run.members.values()]
            there = {member.offer.host for member in members if member.durable.outcome is None} | {record.node}
            held = sum(bool(each.quarantined) for host, each in hosts.items() if host in there - {record.node})
            most = max(1, len(there) * self.world.scenario.policy.quarantine_share)
            self.check(held < most, "%s is one too many", record.node)

    def _members(self, host: str) -> list[Member]:
        runs = self.world.daemon.machine.cluster.live
        return [each for run in runs for each in run.members.values() if each.offer.host == host]

    def judge_end(self) -> None:
        """Check that each idle host is let in again, since its health checks pass by now."""
        for host, known in self.facts.replica.cluster.hosts.items():
            idle = [each.node for each in self._members(host) if each.state is MemberState.QUARANTINED]
            self.check(not idle or known.by is not Judge.CHECK, "%s is kept out though it is well", host)

    def _check_round(self, record: RoundFormed) -> None:
        cluster, run = self.world.daemon.machine.cluster, self.world.daemon.machine.jobs[record.job]
        members = [run.members[ranks.node] for ranks in record.nodes]
        taken = [member.node for member in members if cluster.durable.why_quarantined(member.offer.host)]
        awaited = [each for each in run.roll.in_state(MemberState.PREPARING) if not each.readiness.quarantined]
        is_least = len(members) == run.spec.nodes_min and not awaited
        self.check(not taken or is_least, "the round has quarantined nodes that it does not need: %s", taken)
