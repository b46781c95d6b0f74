"""Judges hosts when a round is over: which one is charged with its end, and whether rounds do without it from now on.

`values/charges` says what a charge is. A quarantined host stays connected as a spare, and is in a round only if too few
other nodes are there. It is let in again by an operator, when its errors turn out to be those of many hosts, or when
the health check passes that had failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values.charges import (
    CHARGES_MAX,
    FAULT_OF,
    SPREAD_HALF_LIVES,
    SPREAD_SHARE,
    Charge,
    Fault,
    HostCharges,
    Judge,
    hosts_with,
    weight,
)
from coordinatord.core.rounds.values.pair_search import NodeVerdict, PairSearch
from coordinatord.core.rounds.values.records import HostJudged
from coordinatord.hints.xid import OF_THE_NODE
from coordinatord.protocol.exit_codes import describe_exit, signal_behind
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.messages import Cause, CheckResult, HangKind, OnDivergence, Report
from coordinatord.protocol.text import clip

HOSTS_MAX = 20_000
"""The most hosts that are on record, as many as there may be nodes; a further one is not charged."""


def judge(run: Run, report: Report | None, decision: Decision) -> None:
    """Charge the host that ended the round, if one did by a fault of its own, and quarantine it if that is enough."""
    if report is not None and report.cause is Cause.DIVERGENCE:
        found = _diverged_host(run, report)
    else:
        found = _lost_host(run) if report is None else _failed_host(run, report)
    hosts = decision.cluster.durable.hosts
    if found is None or len(_hosts_of(run) | {found[0]}) == 1 or len(hosts) >= HOSTS_MAX:
        return
    host, charge = found
    known = hosts.get(host, HostCharges())
    charges = (*known.as_of(decision.now), charge)[-CHARGES_MAX:]
    text, why, by = f"host {host} is charged: {_describe(charge)}", known.quarantined, known.by
    held = [each for each in charges if not _is_spread(each, host, run, decision)]
    if charge not in held:
        text += "; it does not count, since the same error came on other hosts too"
    elif _is_enough(held, run.policy) and (not why or by in {Judge.CHECK, Judge.PREFLIGHT}):
        if why or _may_lose_one(run, host, decision):
            by = Judge.CHARGES
            why = clip(f"quarantined for {_count(held)}, the last one: {_describe(charge)}", MESSAGE_MAX)
            text = f"host {host} is {why}"
        else:
            text += "; it is not quarantined, since as many hosts are as may be (--quarantine-share)"
    _record(host, charges, why, text, decision, by=by)
    if charge not in held:
        _lift_quarantines(charge, run, decision)


def heed_check(run: Run, member: Member, decision: Decision) -> None:
    """Quarantine the host of a node whose health check failed, or let it in again after one that passes.

    One without an answer changes nothing.
    """
    check = member.observed.check
    if check is not None and check.result is not CheckResult.UNKNOWN:
        says, is_bad = f"its health check {check.says}", check.result is CheckResult.BAD
        _heed(run, member.offer.host, says, Judge.CHECK, decision, is_bad=is_bad)


def heed_preflight(run: Run, search: PairSearch, decision: Decision) -> None:
    """Quarantine the hosts of nodes with a fault that a search has found, and let in again those that it finds good.

    One host is not judged by itself: its nodes were compared only with each other. Workers of any job slow the tests
    on their host, so such a host is quarantined only for a wrong product.
    """
    findings, nodes = search.findings, dict[str, list[str]]()
    busy = {member.offer.host for each in decision.cluster.live for member in each.roll.inside}
    for node, host in search.hosts.items():
        nodes.setdefault(host, []).append(node)
    for host, own in nodes.items() if len(nodes) > 1 else ():
        faulty = (node for node in own if findings[node].verdict.is_fault)
        bad = next((node for node in faulty if findings[node].verdict is NodeVerdict.WRONG or host not in busy), None)
        if bad is not None:
            says = f"a preflight has found that its node {bad} {findings[bad].text}"
            _heed(run, host, says, Judge.PREFLIGHT, decision, is_bad=True)
        elif all(findings[node].verdict is NodeVerdict.GOOD for node in own):
            _heed(run, host, "a preflight has found it good", Judge.PREFLIGHT, decision, is_bad=False)


def _heed(run: Run, host: str, says: str, by: Judge, decision: Decision, *, is_bad: bool) -> None:
    """Quarantine a host that was found bad, or end the quarantine that the same judge had begun."""
    hosts = decision.cluster.durable.hosts
    known = hosts.get(host, HostCharges())
    if host not in hosts and len(hosts) >= HOSTS_MAX:
        return
    charges, may_judge = known.as_of(decision.now), run.policy.quarantine_at > 0 and not known.quarantined
    if is_bad and may_judge and _may_lose_one(run, host, decision):
        why = clip(f"quarantined: {says}", MESSAGE_MAX)
        _record(host, charges, why, f"host {host} is {why}", decision, by=by)
    elif not is_bad and known.by is by:
        _record(host, charges, "", f"host {host} is let in again: {says}", decision)


def pardon(host: str, text: str, decision: Decision) -> None:
    """Drop all charges against a host, and its quarantine."""
    _record(host, (), "", text, decision)


def quarantine(host: str, text: str, decision: Decision) -> None:
    """Quarantine a host because an operator wants that."""
    charges = decision.cluster.durable.hosts.get(host, HostCharges()).as_of(decision.now)
    _record(host, charges, clip(text, MESSAGE_MAX), f"host {host} is {text}", decision, by=Judge.OPERATOR)


def _record(
    host: str, charges: Sequence[Charge], why: str, text: str, decision: Decision, *, by: Judge = Judge.CHARGES
) -> None:
    cluster = decision.cluster
    spared = [(run, member) for run in cluster.live for member in run.roll.in_state(MemberState.QUARANTINED)]
    decision.record(HostJudged("", "", text, host, tuple(charges), why, by))
    for run, member in spared:
        if member.state is MemberState.READY and run.durable.state is not State.FORMING:
            run.gathering.record_arrival(member, decision.now)  # the round at work may end for it


def _failed_host(run: Run, report: Report) -> tuple[str, Charge] | None:
    """Return the host of the first failed worker with its charge; None if the failure may be no fault of a host."""
    failure, fault = report.failure, FAULT_OF.get(report.cause)
    waited = fault is Fault.HANG and failure.hang is None  # until a timeout, for a worker that nobody names
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


def _may_lose_one(run: Run, host: str, decision: Decision) -> bool:
    """Whether another host of the run may be quarantined: one may always be, and at most a share of all."""
    hosts, known = _hosts_of(run) | {host}, decision.cluster.durable.hosts
    quarantined = sum(bool(known[name].quarantined) for name in hosts if name in known)
    return quarantined < max(1, int(len(hosts) * run.policy.quarantine_share))


def _hosts_with(charge: Charge, run: Run, decision: Decision) -> set[str]:
    """Return the hosts on which this error of the job has come lately, of those on record."""
    since = decision.now - SPREAD_HALF_LIVES * run.policy.charge_half_life_s
    return hosts_with(charge, decision.cluster.durable.hosts, since)


def _is_spread(charge: Charge, host: str, run: Run, decision: Decision) -> bool:
    """Whether the error of a charge against this host has come on so many that it is the fault of none."""
    return len(_hosts_with(charge, run, decision) | {host}) > max(1, SPREAD_SHARE * len(_hosts_of(run) | {host}))


def _lift_quarantines(charge: Charge, run: Run, decision: Decision) -> None:
    """End quarantines for which charges would not have been enough without an error that has come on many hosts."""
    for host in sorted(_hosts_with(charge, run, decision)):
        known = decision.cluster.durable.hosts[host]
        left = [each for each in known.charges if not _is_spread(each, host, run, decision)]
        at_last = [replace(each, age_s=each.age_s - known.charges[-1].age_s) for each in left]
        if known.quarantined and known.by is Judge.CHARGES and not _is_enough(at_last, run.policy):
            text = f"host {host} is no longer quarantined, since an error came on other hosts too: {_describe(charge)}"
            _record(host, known.as_of(decision.now), "", text, decision)


def _is_enough(charges: Sequence[Charge], policy: Policy) -> bool:
    return weight(charges, policy.charge_half_life_s, policy.quarantine_at) >= policy.quarantine_at > 0


def _describe(charge: Charge) -> str:
    return f"{charge.fault} ({charge.error})" if charge.error else str(charge.fault)


def _count(charges: Sequence[Charge]) -> str:
    return "a failed round" if len(charges) == 1 else f"{len(charges)} failed rounds"
