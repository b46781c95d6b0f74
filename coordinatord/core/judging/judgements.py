"""Judges hosts: charges them with failed rounds, and says which of them rounds do without.

A charge says that a host ended a round by a fault of its own. A wrong one costs a good host: a script may fail on each
host that it visits, and a network may cut off many at once. So a failure charges a host only if it may be the host's
fault, and nothing like it happened on another node.

A charge weighs less as it gets older, and counts only while its job has charged few hosts with the same error. If the
charges that count weigh enough, the host is *quarantined*: it stays connected as a spare, and is in a round only if too
few other nodes are there. It is let in again when its errors turn out to be those of many hosts, or when the check or
the preflight that it failed finds it good. An operator may always let it in.

Each judgement is a record (`HostJudged`), which replaces the last one about its host. `HostJudgements` yields them one
by one: the kernel applies each before it takes the next one, which may depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from coordinatord.core.judging.pair_search import NodeVerdict, PairSearch
from coordinatord.core.rounds.queries.next_round import can_do_without
from coordinatord.core.rounds.state.cluster import HOSTS_MAX
from coordinatord.core.rounds.state.durable import DurableCluster
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.judged_host import CHARGES_MAX, Charge, Fault, Judge, JudgedHost
from coordinatord.core.rounds.values.records import HostJudged
from coordinatord.hints.hang_place import may_be_of_host
from coordinatord.hints.xid import OF_THE_NODE
from coordinatord.protocol.exit_codes import describe_exit, signal_behind
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.messages import Cause, HangKind, OnDivergence, Report
from coordinatord.protocol.text import clip, is_same_error

SPREAD_SHARE = 0.05
"""An error that came on more than one host, and on more than this share of a job's hosts, is the fault of none. With a
smaller share, several bad hosts would pass for an error of the script: they seem to have the same error, since a native
crash tells only its signal. In a public trace (Lablup, arXiv 2605.09370), three of 63 hosts are bad. In
`benchmarks/policy`, quarantines avoid 87 % of the rounds that bad hosts would end. If an error on two hosts were always
the fault of none, it would be 39 %."""

SPREAD_HALF_LIVES = 4
"""The half-lives after which a charge no longer shows that an error has come on a host: it weighs a sixteenth then."""

FAULT_OF = {
    Cause.DEVICE: Fault.DEVICE,
    Cause.HANG: Fault.HANG,
    Cause.DISK: Fault.DISK,
    Cause.UNKNOWN: Fault.CRASH,
}
"""The faults of hosts by the causes of failures. `_diverged_host` judges a divergence. Other causes are no fault of a
host: an error of the script, a lack of memory, an act of somebody outside the job, and a broken connection, since
either end may have failed."""


class HostJudgements:
    """Judges the hosts of a run at one moment, by what is on record of all hosts; made anew for each event.

    A host belongs to no job, so its records have an empty job and an empty run.
    """

    def __init__(self, run: Run, cluster: DurableCluster, now: float) -> None:
        self._run, self._cluster, self._now = run, cluster, now

    def on_round(self, report: Report | None) -> Iterator[HostJudged]:
        """Charge the host that ended the round by a fault of its own, if any, and quarantine it if that is enough."""
        found = charged_host(self._run, report)
        if found is None:
            return
        host, charge = found
        if not self._has_room_for(host) or self._hosts <= {host}:
            return  # without another host, nothing tells a fault of the host from one of the script
        known = self._cluster.hosts.get(host, JudgedHost())
        charges = (*known.as_of(self._now), charge)[-CHARGES_MAX:]
        text = f"host {host} is charged: {_describe(charge)}"
        charged = HostJudged("", "", text, host, charges, known.quarantined, known.by)
        counting = [each for each in charges if not self._is_spread(each, host)]
        # A good check or preflight would end a quarantine by an earlier one, so charges replace that by their own.
        may_begin = not known.quarantined or known.by in {Judge.CHECK, Judge.PREFLIGHT}
        if charge not in counting:
            yield replace(charged, reason=f"{text}; it does not count, since the same error came on other hosts too")
            yield from self._lift_quarantines(charge)
        elif not (self._is_enough(counting) and may_begin):
            yield charged
        elif not known.quarantined and not self._may_lose_one(host):
            yield replace(charged, reason=f"{text}; it is not quarantined, since --quarantine-share allows no more")
        else:
            why = clip(f"quarantined for {_count(counting)}, the last one: {_describe(charge)}", SENTENCE_MAX)
            yield replace(charged, reason=f"host {host} is {why}", quarantined=why, by=Judge.CHARGES)

    def on_preflight(self, search: PairSearch, busy: Collection[str]) -> Iterator[HostJudged]:
        """Quarantine the hosts of nodes with a fault that a search has found, and let in again those it finds good.

        If all nodes are on one host, it is not judged, since they were compared only with each other. A host is `busy`
        if it has workers of any job, which slow the tests: it is quarantined only for a wrong matrix product.
        """
        findings, nodes = search.findings, dict[str, list[str]]()
        for node, host in search.hosts.items():
            nodes.setdefault(host, []).append(node)
        faults = {verdict for verdict in NodeVerdict if verdict.is_fault}
        for host, own in nodes.items() if len(nodes) > 1 else ():
            counting = {NodeVerdict.WRONG} if host in busy else faults
            bad = next((node for node in own if findings[node].verdict in counting), None)
            if bad is not None:
                says = f"a preflight has found that its node {bad} {findings[bad].text}"
                yield from self.on_finding(host, says, Judge.PREFLIGHT, is_bad=True)
            elif all(findings[node].verdict is NodeVerdict.GOOD for node in own):
                yield from self.on_finding(host, "a preflight has found it good", Judge.PREFLIGHT, is_bad=False)

    def on_finding(self, host: str, says: str, by: Judge, *, is_bad: bool) -> Iterator[HostJudged]:
        """Quarantine a host that a judge has found bad, or end that judge's own quarantine of a host it finds good.

        A host that is in quarantine already is left to the judge who wanted that.
        """
        known = self._cluster.hosts.get(host, JudgedHost())
        if not self._has_room_for(host):
            return
        charges, may_judge = known.as_of(self._now), self._run.policy.quarantine_at > 0 and not known.quarantined
        if is_bad and may_judge and self._may_lose_one(host):
            why = clip(f"quarantined: {says}", SENTENCE_MAX)
            yield HostJudged("", "", f"host {host} is {why}", host, charges, why, by)
        elif not is_bad and known.by is by:
            yield HostJudged("", "", f"host {host} is let in again: {says}", host, charges)

    @property
    def _hosts(self) -> set[str]:
        """The hosts of the run."""
        return {member.offer.host for member in self._run.members.values() if member.durable.outcome is None}

    def _has_room_for(self, host: str) -> bool:
        """Whether a host may be judged: it is on record already, or can be added."""
        return host in self._cluster.hosts or len(self._cluster.hosts) < HOSTS_MAX

    def _may_lose_one(self, host: str) -> bool:
        """Whether this host may be quarantined too: one host may, and more up to `--quarantine-share` of all."""
        hosts = self._hosts | {host}
        quarantined = len(hosts & {name for name, known in self._cluster.hosts.items() if known.quarantined})
        return quarantined < max(1, int(len(hosts) * self._run.policy.quarantine_share))

    def _hosts_with(self, charge: Charge) -> set[str]:
        """Return the hosts on record that the same job has charged with the same error lately."""
        since = self._now - SPREAD_HALF_LIVES * self._run.policy.charge_half_life_s
        return {
            name
            for name, known in self._cluster.hosts.items()
            if any(known.at - each.age_s >= since and is_same_charge(each, charge) for each in known.charges)
        }

    def _is_spread(self, charge: Charge, host: str) -> bool:
        """Whether the error of a charge against this host has come on so many hosts that it is the fault of none."""
        hosts = self._hosts_with(charge) | {host}
        return len(hosts) > max(1, SPREAD_SHARE * len(self._hosts | {host}))

    def _lift_quarantines(self, charge: Charge) -> Iterator[HostJudged]:
        """End the quarantines that would not have come about without this charge's error, which many hosts have.

        The remaining charges are weighed with their ages at the last charge of the host, when it was judged. A
        quarantine must not end only because time has passed.
        """
        for host in sorted(self._hosts_with(charge)):
            known = self._cluster.hosts[host]
            left = [each for each in known.charges if not self._is_spread(each, host)]
            at_last = [replace(each, age_s=each.age_s - known.charges[-1].age_s) for each in left]
            if known.quarantined and known.by is Judge.CHARGES and not self._is_enough(at_last):
                error = _describe(charge)
                text = f"host {host} is no longer quarantined, since an error came on other hosts too: {error}"
                yield HostJudged("", "", text, host, known.as_of(self._now))

    def _is_enough(self, charges: Sequence[Charge]) -> bool:
        """Whether charges are enough for a quarantine."""
        policy = self._run.policy
        return weight(charges, policy.charge_half_life_s, policy.quarantine_at) >= policy.quarantine_at > 0


def _describe(charge: Charge) -> str:
    return f"{charge.fault} ({charge.error})" if charge.error else str(charge.fault)


def _count(charges: Sequence[Charge]) -> str:
    return "a failed round" if len(charges) == 1 else f"{len(charges)} failed rounds"


def weight(charges: Iterable[Charge], half_life_s: float, threshold: float) -> float:
    """Return the sum of charges: 1 for each, halved with each half-life.

    A broken GPU counts `threshold`, so that one is enough: it does not mend itself.
    """
    return sum(
        (threshold if each.fault is Fault.DEVICE else 1.0) * math.exp2(-each.age_s / half_life_s) for each in charges
    )


def is_same_charge(one: Charge, other: Charge) -> bool:
    """Whether two charges are for the same error of one job. On many hosts, it is the fault of none.

    Equal errors of two jobs show nothing: of a crash, often only the signal is known.
    """
    return one.job == other.job and one.fault is other.fault and is_same_error(one.error, other.error)


def charged_host(run: Run, report: Report | None) -> tuple[str, Charge] | None:
    """Return the host to charge with the end of a round, and the charge; None if the end may be no fault of a host.

    Without a report, no worker failed by itself: the round was stopped, or has lost nodes.
    """
    if report is None:
        return _lost_host(run)
    return _diverged_host(run, report) if report.cause is Cause.DIVERGENCE else _failed_host(run, report)


def _failed_host(run: Run, report: Report) -> tuple[str, Charge] | None:
    """Return the host of the first failed worker with its charge; None if the failure may be no fault of a host."""
    failure, fault = report.failure, FAULT_OF.get(report.cause)
    if fault is None:
        return None
    if fault is Fault.CRASH and signal_behind(failure.exit_code) is None:
        return None  # without a signal, the script has ended the process
    is_torch_timeout = fault is Fault.HANG and failure.hang is None
    if is_torch_timeout or failure.hang is HangKind.NETWORK or failure.hang_ranks:
        return None  # the hang has no culprit, or several
    are_all_named = report.consequences_count == len(report.consequences)
    if not are_all_named or any(other.same_error and other.node != report.node for other in report.consequences):
        return None  # the same error came on another node, or may have among those that the report leaves out
    # A hang by the script's fault moves with its rank. If rounds need this host, the rank stays there, and the host
    # would be charged each time. Otherwise a quarantine tells whose fault it is: if the rank hangs on another host too,
    # the quarantine is lifted.
    if failure.hang is not None and not may_be_of_host(failure) and not can_do_without(run, report.host):
        return None
    # A certain fault has no error to compare with those of other hosts.
    error = failure.hang or failure.error or failure.message or describe_exit(failure.exit_code)
    is_certain = not OF_THE_NODE.keys().isdisjoint(failure.xids)
    return report.host, Charge(fault, "" if is_certain else clip(error, SENTENCE_MAX), age_s=0.0, job=run.job)


def _diverged_host(run: Run, report: Report) -> tuple[str, Charge] | None:
    """Return the host of the ranks that differ from most others with its charge; None unless one node has all of them.

    The step is in the error for people: numbers do not count when errors of hosts are compared.
    """
    found = run.durable.divergence
    if found is None or run.spec.on_divergence is not OnDivergence.QUARANTINE:
        return None
    error = f"other parameters or optimizer state than most ranks at step {found.step}"
    is_one_node = [own.node for own in run.durable.nodes_of(found.ranks)] == [report.node]
    return (report.host, Charge(Fault.DIVERGENCE, error, age_s=0.0, job=run.job)) if is_one_node else None


def _lost_host(run: Run) -> tuple[str, Charge] | None:
    """Return the host that the round has lost with its charge; None if it lost none or several, or only a process.

    A host that goes is silent, while a process that ends closes its connection.
    """
    # `losses` are the nodes that the round has lost. `lost` says which host each had, and whether that went silent.
    nodes = {loss.node for loss in run.durable.losses}
    lost = [each for each in run.durable.lost if each.node in nodes and each.round == run.durable.round]
    hosts, are_silent = {each.host for each in lost}, all(each.silent for each in lost)
    return (hosts.pop(), Charge(Fault.LOST, "", age_s=0.0, job=run.job)) if are_silent and len(hosts) == 1 else None
