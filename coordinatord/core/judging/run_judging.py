"""The door of this wing: `RunJudging` implements `JudgingWing`, by which a run has its hosts judged and tested.

Charges follow the end of each round. A *preflight* looks for bad hosts before they end one: it tests nodes without
workers in pairs, in turns, of which `pair_search` chooses the pairs and draws the conclusions. It begins on an
operator's request, and by `--preflight` also while nodes are idle, or before the next round when nodes are suspect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from coordinatord.core.judging.judgements import HostJudgements
from coordinatord.core.judging.pair_search import PairSearch
from coordinatord.core.rounds.policy import PreflightWhen
from coordinatord.core.rounds.queries.conditions import settled
from coordinatord.core.rounds.queries.next_round import master_address
from coordinatord.core.rounds.state.cluster import Cluster
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import UNHEARD, Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.state.wings import JudgingWing
from coordinatord.core.rounds.values.admin_requests import AdminResult
from coordinatord.core.rounds.values.due_times import LONG_AGO, NOW
from coordinatord.core.rounds.values.judged_host import Judge
from coordinatord.core.rounds.values.records import HostJudged, PreflightBegan, PreflightEnded, Record
from coordinatord.protocol.fields import COUNTER_MAX, SENTENCE_MAX
from coordinatord.protocol.messages import Cause, CheckResult, HealthCheck, Launcher, Report
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from coordinatord.protocol.text import clip

GRACE_S = 2.0
"""How many seconds longer than its tests a turn takes at most: a heartbeat for the orders and one for the results."""

DELAY_S = 15.0
"""How many seconds a round waits for a preflight on suspicion: two turns of good nodes take 8 s."""

IDLE_FOR_S = 60.0
"""How many seconds nodes wait before they are tested without a request, so that nodes that come within a minute are
tested together."""

SUSPECT_ROUNDS = 2
"""How many rounds in a row have to fail because of the network or a hang before nodes are tested: one proves little."""

RETEST_AFTER_S = 1_800.0
"""The pause in seconds before nodes are tested again without a request. A mended host is let in within half an hour,
and the tests cost little."""

_SUSPECT_CAUSES = {Cause.NETWORK, Cause.HANG}
"""The causes of failures behind which a bad link or a slow host may be."""

REPORTED_MAX = COUNTER_MAX // 2
"""The highest number of a test that is believed when a node reports it, so that higher ones are left for new tests."""


def testable(run: Run) -> list[Member]:
    """Return the members of a run that wait without workers, and so may be tested, sorted by host."""
    waiting = run.roll.in_state(MemberState.READY, MemberState.QUARANTINED)
    return sorted(waiting, key=lambda member: (member.offer.host, member.node))


class Preflight:
    """One preflight of some members of a run: the orders and results of its present turn.

    Members that leave the run or get workers meanwhile are tested no more. Nothing of it is recorded: after a restart
    of the coordinator there is no preflight, and nodes end their tests.
    """

    def __init__(
        self, run: Run, members: Sequence[Member], why: str, number: int, now: float, delays_until: float
    ) -> None:
        """Begin the first turn, whose tests have this number; the next round waits for the tests until `delays_until`.

        Without members it is over at once, so a run that never had a preflight has an empty one.
        """
        self._run = run
        self.members = {member.node: member for member in members}
        """The members by node id. A younger process with the same id is another member: it may be on another host."""
        self.search = PairSearch({member.node: member.offer.host for member in members})
        self.why, self.stopped = why, ""
        """Why it was begun, and why it was ended before its time; empty if it was not."""
        self.number = number
        """The number of this turn's tests, higher than that of any earlier test of these nodes."""
        self.delays_until = delays_until
        self._order_tests(now)

    def _order_tests(self, now: float) -> None:
        """Order the tests of the search's turn, except those of nodes that no longer wait without workers."""
        waiting = {member.node: member for member in testable(self._run) if self.members.get(member.node) is member}
        self.orders: dict[str, PairOrder] = {}
        """The order of each node in this turn; empty once the preflight is over."""
        within_s = self._run.policy.pair_timeout_s
        for pair in self.search.pairs:
            first, second = waiting.get(pair[0]), waiting.get(pair[1])
            if first is not None and second is not None:
                at = master_address(first, [first, second]), first.observed.port
                for rank, node, partner in (0, first.node, second.node), (1, second.node, first.node):
                    self.orders[node] = PairOrder(self.number, rank, partner, *at, within_s)
        self._results: dict[str, PairResult] = {}
        """The results of this turn so far."""
        self.awaited = set(self.orders)
        """The nodes whose results are still to come; the turn ends early when none is left."""
        self.ends_at = now + within_s + GRACE_S
        """When the turn is over, even if results are still to come."""
        if self.is_over:
            self.delays_until = NOW

    @property
    def is_over(self) -> bool:
        """Whether no node is ordered to run a test any more."""
        return not self.orders

    def report(self, member: Member) -> None:
        """Record the result that a member has reported, if it is of this turn."""
        result = member.observed.pair
        if member.node in self.awaited and result is not None and result.number == self.number:
            self._results[member.node] = result
            self.awaited.discard(member.node)

    def end_turn(self, now: float) -> None:
        """Let the search find what the results of the turn show, and begin the next turn, if there is one."""
        self.search.end_turn(self._results)
        self.number += 1
        self._order_tests(now)

    def postpone(self, by: float) -> None:
        """Put off all deadlines by so many seconds, in which the coordinator was asleep."""
        self.ends_at += by
        self.delays_until += by

    def stop(self, why: str, hosts: Collection[str] | None) -> bool:
        """End it before its time; return False if it is over, or tests none of these hosts."""
        if not any(hosts is None or self.members[node].offer.host in hosts for node in self.orders):
            return False
        self.orders, self.delays_until, self.stopped = {}, NOW, why
        return True


class RunJudging(JudgingWing):
    """Judges the hosts of one run, as `JudgingWing` says."""

    def __init__(self, run: Run) -> None:
        """Begin with a preflight of no members, which is over."""
        self._run = run
        self.preflight = Preflight(run, members=(), why="", number=0, now=LONG_AGO, delays_until=NOW)
        """The present preflight, or the last one in this life of the daemon; an empty one before the first."""
        self._checked: dict[str, HealthCheck | None] = {}
        """The last health check of each node by which its host was judged."""
        self._suspect_rounds = 0
        """How many rounds in a row have failed because of the network or a hang, since the last preflight on suspicion,
        whatever that was about: it tests all nodes that wait, so it answers every suspicion."""
        self.idle_at = NOW
        """When to look again for members to test without a request, since too few were on idle hosts the last time."""

    @property
    def orders(self) -> Mapping[str, PairOrder]:
        """The tests of this turn."""
        return self.preflight.orders

    @property
    def delays_until(self) -> float:
        """When the next round no longer waits for the preflight."""
        return self.preflight.delays_until

    def judge(self, report: Report | None, cluster: Cluster, now: float) -> Iterable[HostJudged]:
        """Judge the host that ended the round, and count the rounds in a row that a bad host may have ended."""
        is_suspect = report is not None and report.cause in _SUSPECT_CAUSES
        self._suspect_rounds = self._suspect_rounds + 1 if is_suspect else 0
        return HostJudgements(self._run, cluster.durable, now).on_round(report)

    def report(self, member: Member) -> bool:
        """Record the result of a test in a member's report, if any; return whether its health check is a new one."""
        self.preflight.report(member)
        return member.observed.check != self._checked.get(member.node)

    def check(self, member: Member, cluster: Cluster, now: float) -> Iterable[HostJudged]:
        """Quarantine the host of a node whose health check failed, or let it in again after a check that passed.

        A check that passed is put off while that of another node of the host fails, or is not known yet after a restart
        of the coordinator: nodes of other jobs may check for less.
        """
        check, host = member.observed.check, member.offer.host
        if check == self._checked.get(member.node):
            return ()
        is_bad = _failed(check)
        if not is_bad and _is_bad_to_another(member, cluster):
            return ()
        self._checked[member.node] = check
        if check is None or check.result is CheckResult.UNKNOWN:
            return ()
        says = f"its health check {check.says}"
        return HostJudgements(self._run, cluster.durable, now).on_finding(host, says, Judge.CHECK, is_bad=is_bad)

    def remove(self, member: Member) -> None:
        """Wait for no result of a node that is gone, and forget its check."""
        self.preflight.awaited.discard(member.node)
        self._checked.pop(member.node, None)

    def postpone(self, by: float) -> None:
        """Put off the deadlines of the preflight."""
        self.preflight.postpone(by)

    def obstacle(self) -> str:
        """Say for which preflight the next round waits; empty if for none."""
        durable, preflight = self._run.durable, self.preflight
        # `delays_until` is `NOW` unless tests on suspicion go on. If these have delayed an earlier round, that time was
        # over before the run entered this state.
        if preflight.delays_until <= durable.entered_at:
            return ""
        return f"nodes are tested in pairs before round {durable.round + 1}: {preflight.why}"

    def preflight_answer(self) -> tuple[AdminResult, str]:
        """Return whether all nodes without workers can be tested now, and the answer to the operator who asks."""
        run, number = self._run, len(testable(self._run))
        if not self.preflight.is_over:
            return AdminResult.NOTHING, f"a preflight of job {run.job} is under way already: {self.preflight.why}"
        if run.spec.launcher is Launcher.TORCHRUN:
            why = "torchrun starts the workers of its nodes, and tests none"
        elif number < 2:  # noqa: PLR2004 - a pair
            why = "it needs two nodes without workers, such as spares"
        else:
            return AdminResult.DONE, f"{number} nodes of job {run.job} are tested in pairs"
        return AdminResult.REFUSED, f"job {run.job} cannot have a preflight now: {why}"

    def begin_preflight(self, why: str, now: float) -> Iterable[Record]:
        """Begin a preflight of all nodes without workers."""
        return (self._begin(testable(self._run), why, now),)

    def _begin(self, members: Sequence[Member], why: str, now: float, delays_until: float = NOW) -> PreflightBegan:
        """Begin a preflight of some members; the next round waits for it until `delays_until`."""
        # A restarted coordinator counts from 0 again. No old result in a report may pass for one of this preflight.
        reported = (member.observed.pair.number for member in members if member.observed.pair is not None)
        last = max((self.preflight.number, *(number for number in reported if number <= REPORTED_MAX)))
        self.preflight = Preflight(self._run, members, why, last + 1, now, delays_until)
        self.idle_at = NOW
        text = f"{len(members)} nodes are tested in pairs: {why}"
        return PreflightBegan(self._run.job, self._run.id, clip(text, SENTENCE_MAX))

    def stop_tests(self, why: str, hosts: Collection[str] | None = None) -> Record | None:
        """End the preflight if it tests one of these hosts (None: any host); return the record of that, if it ended."""
        return self._ended(f"stopped: {why}") if self.preflight.stop(why, hosts) else None

    def _ended(self, text: str) -> PreflightEnded:
        """Return the record of the end of the preflight."""
        return PreflightEnded(self._run.job, self._run.id, clip(text, SENTENCE_MAX))

    def next_at(self) -> float | None:
        """Return when a turn is over, or a preflight begins by itself: before a round on suspicion, else when idle."""
        if not self.preflight.is_over:
            return self.preflight.ends_at if self.preflight.awaited else NOW
        return self._suspicion_due() if self._run.durable.state is State.FORMING else self._idle_due()

    def act(self, cluster: Cluster, now: float) -> Iterable[Record]:
        """Do what `next_at` has announced. If no node on an idle host needs a preflight by now, look again later."""
        if not self.preflight.is_over:
            return self._end_turn(cluster, now)
        if self._run.durable.state is State.FORMING:
            _, why = self._suspicion() or (NOW, "")  # there is one: else `next_at` would have called for no preflight
            self._suspect_rounds = 0
            return (self._begin(testable(self._run), why, now, delays_until=now + DELAY_S),)
        # Hosts of a round that is over count as busy: the job mostly begins the next one soon, on the same hosts.
        working = [run.members.get(node) for run in cluster.live for node in run.durable.order]
        busy = {member.offer.host for member in working if member is not None}
        members = [member for member in testable(self._run) if member.offer.host not in busy]
        if _need_test(members):
            return (self._begin(members, "nodes wait on hosts without workers", now),)
        self.idle_at = now + IDLE_FOR_S
        return ()

    def _suspicion_due(self) -> float | None:
        """Return from when suspect nodes are to be tested: when a round could be formed otherwise. None if never."""
        run = self._run
        wanted = run.policy.preflight is PreflightWhen.SUSPICION and run.spec.launcher is not Launcher.TORCHRUN
        suspicion = self._suspicion() if wanted else None
        if suspicion is None or len({member.offer.host for member in testable(self._run)}) < 2:  # noqa: PLR2004 - a pair
            return None
        formed_at = settled(run)
        return None if formed_at is None else max(suspicion[0], formed_at)

    def _suspicion(self) -> tuple[float, str] | None:
        """Return from when nodes of the last rounds are suspect, and why; None if none is.

        The network or a hang has ended two rounds in a row, or a node was late in the last one. A node is not tested
        again for its lateness within half an hour: its worker may just have more to do than others.
        """
        if self._suspect_rounds >= SUSPECT_ROUNDS:
            return NOW, "the last two rounds have failed because of the network or a hang"
        node, late = self._run.watching.late()
        if node not in {member.node for member in testable(self._run)}:
            return None
        since = self.preflight.ends_at + RETEST_AFTER_S if node in self.preflight.members else NOW
        return since, f"in the last round, {late}"

    def _idle_due(self) -> float | None:
        """Return from when nodes that wait beside a running round are to be tested; None if none has to be."""
        run = self._run
        may_test = run.policy.preflight is not PreflightWhen.ASKED and run.spec.launcher is not Launcher.TORCHRUN
        if not may_test or run.durable.state is not State.RUNNING:
            return None
        members = testable(self._run) if run.roll.count(MemberState.READY, MemberState.QUARANTINED) > 1 else []
        if not _need_test(members):
            return None
        waited = max(member.readiness.arrived_at for member in members) + IDLE_FOR_S
        return max(waited, self.idle_at, self.preflight.ends_at + RETEST_AFTER_S)

    def _end_turn(self, cluster: Cluster, now: float) -> Iterable[Record]:
        """End a turn; if the preflight has begun no further one, judge the hosts."""
        self.preflight.end_turn(now)
        if self.preflight.is_over:
            # Here a host is busy only if workers may run on it now, since they slow the tests.
            busy = {member.offer.host for run in cluster.live for member in run.roll.inside}
            search = self.preflight.search
            yield from HostJudgements(self._run, cluster.durable, now).on_preflight(search, busy)
            yield self._ended(search.verdict)


def _need_test(members: Sequence[Member]) -> bool:
    """Whether to test these members: they are on several hosts, and one was never tested or is quarantined."""
    is_unproven = any(member.observed.pair is None or member.readiness.quarantined for member in members)
    return is_unproven and len({member.offer.host for member in members}) > 1


def _is_bad_to_another(member: Member, cluster: Cluster) -> bool:
    """Whether a failed check keeps the member's host out, and the last check of another node there may have failed."""
    host = member.offer.host
    known = cluster.durable.hosts.get(host)
    if known is None or known.by is not Judge.CHECK:
        return False
    there = [other for run in cluster.live for other in run.members.values() if other.offer.host == host]
    return any(
        other.observed == UNHEARD or (other.session.id is not None and _failed(other.observed.check))
        for other in there
        if other is not member and other.durable.outcome is None
    )


def _failed(check: HealthCheck | None) -> bool:
    return check is not None and check.result is CheckResult.BAD
