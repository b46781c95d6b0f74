"""Judges hosts when a round is over: which one is charged with its end, and whether rounds do without it from now on.

A script may fail on each host that it visits, and a network may cut off many at once. So a failure charges a host only
if it may be the host's fault, and if nothing like it happened on another host in the same round. A charge counts only
as long as its job has charged few hosts with the same error.

A quarantined host stays connected as a spare, and is in a round only if too few other nodes are there. It is let in
again when its errors turn out to be those of many hosts, or when the check or the preflight that it failed finds it
good. An operator may always let it in.

Each judgement is a record. The kernel applies it before it takes the next one, which may depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from coordinatord.core.judging.pair_search import NodeVerdict, PairSearch
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.cluster import HOSTS_MAX
from coordinatord.core.rounds.state.durable import DurableCluster
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.charges import CHARGES_MAX, Charge, Fault, HostCharges, Judge
from coordinatord.core.rounds.values.records import HostJudged
from coordinatord.hints.xid import OF_THE_NODE
from coordinatord.protocol.exit_codes import describe_exit, signal_behind
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.messages import Cause, HangKind, OnDivergence, Report
from coordinatord.protocol.text import clip, is_same_error

SPREAD_SHARE = 0.05
"""An error that came on more hosts than this share of a job's, and on more than one, is the fault of none. Bad hosts
crash alike, since a native crash tells only its signal, and three of 63 are bad in a public trace (Lablup, arXiv
2605.09370). With a limit of two hosts, 39 % of their rounds are avoided in `benchmarks/policy`; with this one, 87 %."""

SPREAD_HALF_LIVES = 4
"""The half-lives after which a charge no longer shows that an error has come on a host: it hardly weighs anything."""

FAULT_OF = {
    Cause.DEVICE: Fault.DEVICE,
    Cause.HANG: Fault.HANG,
    Cause.DISK: Fault.DISK,
    Cause.UNKNOWN: Fault.CRASH,
    Cause.DIVERGENCE: Fault.DIVERGENCE,
}
"""The faults by their causes. An error of the script, a lack of memory, and what somebody outside the job does to a
worker are no fault of a host. A broken connection is none either, since each end may have failed."""


def judge(run: Run, report: Report | None, cluster: DurableCluster, now: float) -> Iterator[HostJudged]:
    """Charge the host that ended the round, if one did by a fault of its own, and quarantine it if that is enough."""
    if report is not None and report.cause is Cause.DIVERGENCE:
        found = _diverged_host(run, report)
    else:
        found = _lost_host(run) if report is None else _failed_host(run, report)
    if found is None or len(_hosts_of(run) | {found[0]}) == 1 or len(cluster.hosts) >= HOSTS_MAX:
        return
    host, charge = found
    known = cluster.hosts.get(host, HostCharges())
    charges = (*known.as_of(now), charge)[-CHARGES_MAX:]
    text, why, by = f"host {host} is charged: {_describe(charge)}", known.quarantined, known.by
    held = [each for each in charges if not _is_spread(each, host, run, cluster, now)]
    if charge not in held:
        text += "; it does not count, since the same error came on other hosts too"
    elif _is_enough(held, run.policy) and (not why or by in {Judge.CHECK, Judge.PREFLIGHT}):
        if why or _may_lose_one(run, host, cluster):
            by = Judge.CHARGES
            why = clip(f"quarantined for {_count(held)}, the last one: {_describe(charge)}", MESSAGE_MAX)
            text = f"host {host} is {why}"
        else:
            text += "; it is not quarantined, since as many hosts are as may be (--quarantine-share)"
    yield HostJudged("", "", text, host, charges, why, by)
    if charge not in held:
        yield from _lift_quarantines(charge, run, cluster, now)


def act_on_preflight(
    run: Run, search: PairSearch, busy: Collection[str], cluster: DurableCluster, now: float
) -> Iterator[HostJudged]:
    """Quarantine the hosts of nodes with a fault that a search has found, and let in again those that it finds good.

    If all nodes are on one host, it is not judged, since they were compared only with each other. Workers of any job
    slow the tests on their hosts, which are `busy`: such a host is quarantined only for a wrong product.
    """
    findings, nodes = search.findings, dict[str, list[str]]()
    for node, host in search.hosts.items():
        nodes.setdefault(host, []).append(node)
    for host, own in nodes.items() if len(nodes) > 1 else ():
        faulty = (node for node in own if findings[node].verdict.is_fault)
        bad = next((node for node in faulty if findings[node].verdict is NodeVerdict.WRONG or host not in busy), None)
        if bad is not None:
            says = f"a preflight has found that its node {bad} {findings[bad].text}"
            yield from act_on(run, host, says, Judge.PREFLIGHT, cluster, now, is_bad=True)
        elif all(findings[node].verdict is NodeVerdict.GOOD for node in own):
            says = "a preflight has found it good"
            yield from act_on(run, host, says, Judge.PREFLIGHT, cluster, now, is_bad=False)


def act_on(
    run: Run, host: str, says: str, by: Judge, cluster: DurableCluster, now: float, *, is_bad: bool
) -> Iterator[HostJudged]:
    """Quarantine a host that a judge has found bad, or end that judge's own quarantine of a host it finds good."""
    known = cluster.hosts.get(host, HostCharges())
    if host not in cluster.hosts and len(cluster.hosts) >= HOSTS_MAX:
        return
    charges, may_judge = known.as_of(now), run.policy.quarantine_at > 0 and not known.quarantined
    if is_bad and may_judge and _may_lose_one(run, host, cluster):
        why = clip(f"quarantined: {says}", MESSAGE_MAX)
        yield HostJudged("", "", f"host {host} is {why}", host, charges, why, by)
    elif not is_bad and known.by is by:
        yield HostJudged("", "", f"host {host} is let in again: {says}", host, charges)


def _failed_host(run: Run, report: Report) -> tuple[str, Charge] | None:
    """Return the host of the first failed worker with its charge; None if the failure may be no fault of a host."""
    failure, fault = report.failure, FAULT_OF.get(report.cause)
    waited = fault is Fault.HANG and failure.hang is None  # torch's timeout, which names no culprit
    names_no_worker = waited or failure.hang is HangKind.NETWORK or bool(failure.hang_ranks)
    fail_alike = [other for other in report.consequences if other.same_error and other.node != report.node]
    are_all_named = report.consequences_count == len(report.consequences)
    exits_by_itself = fault is Fault.CRASH and signal_behind(failure.exit_code) is None
    if fault is None or exits_by_itself or names_no_worker or fail_alike or not are_all_named:
        return None
    error = failure.hang or failure.error or failure.message or describe_exit(failure.exit_code)
    is_certain = not OF_THE_NODE.keys().isdisjoint(failure.xids)
    return report.host, Charge(fault, "" if is_certain else clip(error, MESSAGE_MAX), 0.0, run.job)


def _diverged_host(run: Run, report: Report) -> tuple[str, Charge] | None:
    """Return the host of the ranks that differ from most others with its charge; None unless one node has all of them.

    The numbers are in the error for people: they do not count when it is compared with those of other hosts.
    """
    found = run.durable.divergence
    if found is None or run.spec.on_divergence is not OnDivergence.QUARANTINE:
        return None
    error = f"other parameters or optimizer state than most ranks at step {found.step}"
    is_one = [own.node for own in run.durable.nodes_of(found.ranks)] == [report.node]
    return (report.host, Charge(Fault.DIVERGENCE, error, 0.0, run.job)) if is_one else None


def _lost_host(run: Run) -> tuple[str, Charge] | None:
    """Return the host that the round has lost with its charge; None if it lost none or several, or only a process."""
    nodes = {loss.node for loss in run.durable.losses}
    lost = [each for each in run.durable.lost if each.node in nodes and each.round == run.durable.round]
    hosts = {each.host for each in lost if all(other.silent for other in lost)}
    return (hosts.pop(), Charge(Fault.LOST, "", 0.0, run.job)) if len(hosts) == 1 else None


def _hosts_of(run: Run) -> set[str]:
    return {member.offer.host for member in run.members.values() if member.durable.outcome is None}


def _may_lose_one(run: Run, host: str, cluster: DurableCluster) -> bool:
    """Whether another host of the run may be quarantined: one may always be, and at most a share of all."""
    hosts = _hosts_of(run) | {host}
    quarantined = sum(bool(cluster.why_quarantined(name)) for name in hosts)
    return quarantined < max(1, int(len(hosts) * run.policy.quarantine_share))


def _hosts_with(charge: Charge, run: Run, cluster: DurableCluster, now: float) -> set[str]:
    """Return the hosts that the same job has charged with the same error lately, of those on record."""
    since = now - SPREAD_HALF_LIVES * run.policy.charge_half_life_s
    return {
        name
        for name, known in cluster.hosts.items()
        if any(known.at - each.age_s >= since and is_same_charge(each, charge) for each in known.charges)
    }


def _is_spread(charge: Charge, host: str, run: Run, cluster: DurableCluster, now: float) -> bool:
    """Whether the error of a charge against this host has come on so many that it is the fault of none."""
    hosts = _hosts_with(charge, run, cluster, now) | {host}
    return len(hosts) > max(1, SPREAD_SHARE * len(_hosts_of(run) | {host}))


def _lift_quarantines(charge: Charge, run: Run, cluster: DurableCluster, now: float) -> Iterator[HostJudged]:
    """End the quarantines that charges would not have brought about without an error that has come on many hosts."""
    for host in sorted(_hosts_with(charge, run, cluster, now)):
        known = cluster.hosts[host]
        left = [each for each in known.charges if not _is_spread(each, host, run, cluster, now)]
        at_last = [replace(each, age_s=each.age_s - known.charges[-1].age_s) for each in left]
        if known.quarantined and known.by is Judge.CHARGES and not _is_enough(at_last, run.policy):
            text = f"host {host} is no longer quarantined, since an error came on other hosts too: {_describe(charge)}"
            yield HostJudged("", "", text, host, known.as_of(now))


def _is_enough(charges: Sequence[Charge], policy: Policy) -> bool:
    return weight(charges, policy.charge_half_life_s, policy.quarantine_at) >= policy.quarantine_at > 0


def _describe(charge: Charge) -> str:
    return f"{charge.fault} ({charge.error})" if charge.error else str(charge.fault)


def _count(charges: Sequence[Charge]) -> str:
    return "a failed round" if len(charges) == 1 else f"{len(charges)} failed rounds"


def weight(charges: Iterable[Charge], half_life_s: float, threshold: float) -> float:
    """Return the sum of charges: 1 for each, halved with each half-life. A broken GPU counts `threshold`."""
    return sum(
        (threshold if each.fault is Fault.DEVICE else 1.0) * math.exp2(-each.age_s / half_life_s) for each in charges
    )


def is_same_charge(one: Charge, other: Charge) -> bool:
    """Whether two charges are for the same error of one job, which then is no fault of either host.

    Equal errors of two jobs show nothing: of a crash, often only the signal is known.
    """
    return one.job == other.job and one.fault is other.fault and is_same_error(one.error, other.error)
