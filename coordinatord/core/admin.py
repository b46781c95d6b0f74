"""Carries out operators' requests, such as `nodeclient stop` and `nodeclient drain`, and makes the answers.

Most requests only note the wish. The table of transitions does the rest when the machine advances the runs that the
reply names. A request whose effect already holds changes nothing, and the answer says so. So it may be repeated. A dry
run changes nothing either. Its answer has the same text, marked as a dry run, and never the result `DONE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from coordinatord.core.rounds.queries.next_round import pause_s
from coordinatord.core.rounds.queries.past_round import has_succeeded
from coordinatord.core.rounds.queries.reasons import situation
from coordinatord.core.rounds.state.cluster import DRAINED_MAX, HOSTS_MAX, Cluster, apply_drains
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions import actions, observations
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values import records
from coordinatord.core.rounds.values.admin_requests import (
    AdminResult,
    DrainNode,
    ForgetJob,
    PardonNode,
    PreflightJob,
    QuarantineNode,
    Request,
    RestartJob,
    StopJob,
    UndrainNode,
)
from coordinatord.core.rounds.values.judged_host import Judge, JudgedHost
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.messages import Result
from coordinatord.protocol.text import NAMES_MAX, clip, counted, most_similar_of_many, name_some


class Reply(Struct, frozen=True):
    """The answer to a request."""

    result: AdminResult
    text: str
    touched: list[Run] = []
    """The runs that the request has changed, which the machine has to advance."""


def carry_out(request: Request, decision: Decision) -> Reply:
    """Carry out a request, or only describe its effect in a dry run."""
    reply = _reply(request, decision)
    if request.dry_run and reply.result is AdminResult.DONE:
        return Reply(AdminResult.NOTHING, "\n".join(f"dry run: {line}" for line in reply.text.split("\n")))
    return reply


def _reply(request: Request, decision: Decision) -> Reply:
    match request:
        case DrainNode():
            return _drain(request, decision)
        case UndrainNode():
            return _undrain(request, decision)
        case QuarantineNode() | PardonNode():
            return _quarantine_or_pardon(request, decision)
    run = decision.cluster.jobs.get(request.target)
    if run is None:
        return Reply(AdminResult.UNKNOWN_JOB, f"no job {request.target!r} is known here")
    if isinstance(request, StopJob):
        return _stop(run, request, decision)
    actions_of = {RestartJob: _restart, ForgetJob: _forget, PreflightJob: _preflight}
    return actions_of[type(request)](run, request, decision)


# Jobs


def _stop(run: Run, request: StopJob, decision: Decision) -> Reply:
    if run.durable.state.ended:
        return Reply(AdminResult.NOTHING, f"job {run.job} has ended already: {run.durable.reason}")
    if request.no_persist:
        return _end_unwritten(run, request, decision.now)
    if has_succeeded(run):
        text = f"job {run.job} is ending already: {situation(run, decision.now)}"
        return Reply(AdminResult.NOTHING, text)
    if run.durable.stop_asked:
        return Reply(AdminResult.NOTHING, f"job {run.job} is being stopped already: {run.durable.stop_asked}")
    how = _how_it_ends(run)
    if not request.dry_run:
        decision.record(records.JobStopAsked(run.job, run.id, request.attribution("stopped")))
    return Reply(AdminResult.DONE, f"job {run.job} {how}", [run])


def _end_unwritten(run: Run, request: StopJob, now: float) -> Reply:
    if run.keeping.waits.disk_until is None:
        text = f"job {run.job} does not wait for the disk now: {situation(run, now)}"
        return Reply(AdminResult.REFUSED, text)
    if not request.dry_run:
        run.keeping.end_unwritten(request.attribution("stopped with --no-persist"), now)
    return Reply(AdminResult.DONE, f"job {run.job} ends without waiting for the disk", [run])


def _how_it_ends(run: Run) -> str:
    """Describe how an operator's stop will end a run, as the end of a sentence."""
    if run.roll.all_silent:
        return "is over: no node of it is heard, and one that comes back ends its workers"
    if run.durable.state is State.FORMING:
        return f"is being stopped: it had no workers; {run.keeping.before_end()}its nodes end"
    if run.durable.state is State.STOPPING and not run.durable.planned:
        return f"is being stopped: its round is ending already ({run.durable.reason}), and no other follows"
    return "is being stopped: its workers save their state, then its nodes end"


def _restart(run: Run, request: Request, decision: Decision) -> Reply:
    if run.durable.state.ended or has_succeeded(run):
        how = "has ended" if run.durable.state.ended else "is ending"
        step = run.keeping.disk_step
        then = "" if step is None else f", and it goes on from step {step:,} on the disk"
        text = f"job {run.job} {how} ({run.durable.reason}): start its nodes again{then}"
        return Reply(AdminResult.REFUSED, text)
    if run.durable.stop_asked:
        return Reply(AdminResult.REFUSED, f"job {run.job} is being stopped: {run.durable.stop_asked}")
    if run.durable.state in {State.FORMING, State.STOPPING}:
        return _skip_pause(run, request, decision.now)
    if run.roll.all_silent:
        text = f"job {run.job} cannot be restarted now: {situation(run, decision.now)}"
        return Reply(AdminResult.REFUSED, text)
    if run.durable.succeeded:
        text = f"job {run.job} is about to succeed: some of its nodes have, so it is left alone"
        return Reply(AdminResult.REFUSED, text)
    text = f"round {run.durable.round} is being stopped, its workers save their state, and another one follows"
    return _request_restart(run, request, f"job {run.job}: {text}")


def _skip_pause(run: Run, request: Request, now: float) -> Reply:
    on_its_way = f"job {run.job} is on its way to another round already: {run.durable.reason}"
    if run.durable.state is State.STOPPING and not run.durable.planned and not run.restart_asked:
        return _request_restart(run, request, f"{on_its_way}; it follows without a pause")
    if now < run.durable.entered_at + pause_s(run):
        return _request_restart(run, request, f"job {run.job}: the pause before round {run.durable.round + 1} is over")
    return Reply(AdminResult.NOTHING, on_its_way)


def _request_restart(run: Run, request: Request, text: str) -> Reply:
    if not request.dry_run:
        run.restart_asked = request.attribution("restarted")
    return Reply(AdminResult.DONE, text, [run])


def _forget(run: Run, request: Request, decision: Decision) -> Reply:
    is_live = not run.durable.state.ended
    if is_live and run.roll.unreleased:  # nodes that cannot be heard may come back, with workers
        remaining = [member.node for member in run.members.values() if member.durable.outcome is None]
        names = name_some(remaining, len(remaining))
        text = f"job {run.job} is {run.durable.state} with {names}: end it first, with nodeclient stop {run.job}"
        return Reply(AdminResult.REFUSED, text)
    if not request.dry_run:
        why = request.attribution("forgotten")
        if is_live:
            actions.end_run(run, records.Reason("forgotten", why), Result.STOPPED, ExitCode.STOPPED, decision)
        decision.record(records.JobForgotten(run.job, run.id, why))
    return Reply(AdminResult.DONE, f"job {run.job} is forgotten, and its history with it", [run])


def _preflight(run: Run, request: Request, decision: Decision) -> Reply:
    if run.durable.state.ended:
        return Reply(AdminResult.REFUSED, f"job {run.job} has ended: {run.durable.reason}")
    result, text = run.judging.preflight_answer()
    if result is not AdminResult.DONE or request.dry_run:
        return Reply(result, text)
    decision.record_all(run.judging.begin_preflight(request.attribution("asked for"), decision.now))
    decision.notify_all(run)
    return Reply(result, text, [run])


# Nodes


def _drain(request: DrainNode, decision: Decision) -> Reply:
    cluster, name = decision.cluster, request.target
    known = cluster.durable.drained.get(name, {})
    if "" in known:  # an operator has drained it, for all jobs
        return Reply(AdminResult.NOTHING, f"nothing to do: {known['']}")
    if not known and cluster.durable.drains >= DRAINED_MAX:
        text = f"{DRAINED_MAX} names are drained, the limit: take some back with nodeclient undrain"
        return Reply(AdminResult.REFUSED, text)
    if not (request.ahead or name in _known_names(cluster)):
        return Reply(AdminResult.UNKNOWN_NODE, _unknown_name(cluster, name))
    inside = [run for run in cluster.live if _members_named(run, name)]
    lines = [clip(_how_it_goes_on(run, name, request.after)) for run in inside[:NAMES_MAX]]
    if not inside:
        lines = [f"{name} is in no job, and no job lets it in until it is undrained"]
    elif len(inside) > NAMES_MAX:
        lines.append(f"and so in {counted(len(inside) - NAMES_MAX, 'more job')}")
    touched: list[Run] = []
    if not request.dry_run:
        decision.record(records.NodeDrained("", "", f"{name} {request.attribution('drained')}", name))
        touched = apply_drains(cluster)
    return Reply(AdminResult.DONE, "\n".join(lines), touched)


def _members_named(run: Run, *names: str) -> list[Member]:
    """Return the members that have one of these names as their node id or their host, without released ones."""
    known = frozenset(names)
    members = (member for member in run.members.values() if member.durable.outcome is None)
    return [member for member in members if not known.isdisjoint({member.node, member.offer.host})]


def _known_names(cluster: Cluster) -> set[str]:
    """Return the ids of nodes that are in a job or were in its last round, and the hosts of those in a job."""
    names = {node for run in cluster.jobs.values() for node in run.durable.order}
    members = [member for run in cluster.jobs.values() for member in run.members.values()]
    return names.union(*((member.node, member.offer.host) for member in members))


def _unknown_name(cluster: Cluster, wrong: str) -> str:
    """Explain that no node or host has this name, which name may be meant, and how to drain a name ahead of time."""
    nearest = most_similar_of_many(wrong, _known_names(cluster))
    meant = "." if nearest is None else f"; did you mean {nearest}?"
    return f"no job has a node or a host {wrong!r}{meant} To keep out one that is to come later, drain it ahead of time"


def _how_it_goes_on(run: Run, name: str, after: Sequence[str]) -> str:
    """Describe how a run goes on when its nodes with this name leave, after those named in `after` have left."""
    going, gone = _members_named(run, name), _members_named(run, *after)
    names = name_some((member.node for member in going), len(going))
    leaving = {member.node for member in (*going, *gone)}
    is_stopped_before = any(member.durable.in_round for member in gone)
    stops = run.durable.state.at_work and not is_stopped_before and any(member.durable.in_round for member in going)
    how = f": round {run.durable.round} is being stopped, its workers save their state" if stops else ""
    remaining = [
        member
        for member in run.members.values()
        if member.node not in leaving and not member.leaves and member.durable.outcome is None
    ]
    spares = sum(member.state is MemberState.READY for member in remaining)
    others = sum(member.state in {MemberState.PREPARING, MemberState.QUARANTINED} for member in remaining)
    left = sum(member.durable.in_round for member in remaining) + spares + others
    follows = "; a spare takes over" if stops and spares else ""
    if not left:
        follows = "; no node is left then, so the job ends"
    elif left < run.spec.nodes_min:
        follows = f"; {left} of at least {run.spec.nodes_min} nodes are left, so the job waits for others"
    return f"{names} will leave job {run.job}{how}{follows}"


def _undrain(request: Request, decision: Decision) -> Reply:
    cluster, name = decision.cluster, request.target
    if name not in cluster.durable.drained:
        if not cluster.durable.drained:
            return Reply(AdminResult.NOTHING, f"{name} is not drained (nothing is)")
        known = ", ".join(islice(sorted(cluster.durable.drained), NAMES_MAX))
        text = f"{name} is not drained. Drained are: {known} (the name of a host counts for its nodes)"
        return Reply(AdminResult.NOTHING, text)
    named = [
        (run, member, cluster.durable.why_drained(run.job, member.node, member.offer.host, besides=name))
        for run in cluster.jobs.values()
        for member in _members_named(run, name)
    ]
    reasons = dict.fromkeys(why[1] for _, _, why in named if why is not None)
    undrained = [(run, member) for run, member, why in named if why is None and member.drained]
    of_jobs = [why for job, why in cluster.durable.drained[name].items() if job]
    also = clip(f"; taken back as well: {'; '.join(of_jobs[:NAMES_MAX])}") if of_jobs else ""
    if not request.dry_run:
        decision.record(records.NodeUndrained("", "", f"{name} {request.attribution('undrained')}", name))
        for run, member in undrained:
            observations.cancel_drain(run, member, decision.now)
    touched = [run for run, _ in undrained]
    if reasons:
        text = f"{name} is no longer drained under this name, but still kept out: {'; '.join(reasons)}{also}"
        return Reply(AdminResult.DONE, text, touched)
    if touched:
        return Reply(AdminResult.DONE, f"{name} is no longer drained, and stays{also}", touched)
    return Reply(AdminResult.DONE, f"{name} may join again. If its nodeclient has ended, start it again{also}")


def _quarantine_or_pardon(request: Request, decision: Decision) -> Reply:
    """Quarantine or pardon a host that is named by its own name, or by the id of a node on it."""
    cluster, name = decision.cluster, request.target
    hosts = {member.offer.host for run in cluster.jobs.values() for member in _members_named(run, name)}
    if name in hosts or name in cluster.durable.hosts:
        hosts = {name}  # nodes on other hosts may have it as their id
    if not hosts:
        return Reply(AdminResult.UNKNOWN_NODE, f"no job has a node or a host {name!r}, and no such host is charged")
    if len(hosts) > 1:
        several = ", ".join(islice(sorted(hosts), NAMES_MAX))
        return Reply(AdminResult.REFUSED, f"nodes {name} of several jobs are on different hosts: name one of {several}")
    [host] = hosts
    known = cluster.durable.hosts.get(host)
    if isinstance(request, PardonNode):
        if known is None:
            return Reply(AdminResult.NOTHING, f"nothing to do for host {host}: it is not charged")
        effect = "is no longer charged, and is let in again"
        judged = records.HostJudged("", "", f"host {host} is {request.attribution('pardoned')}", host)
    elif known is not None and known.by is Judge.OPERATOR:
        return Reply(AdminResult.NOTHING, f"nothing to do for host {host}: {known.quarantined}")
    elif known is None and len(cluster.durable.hosts) >= HOSTS_MAX:
        return Reply(AdminResult.REFUSED, f"{HOSTS_MAX} hosts are on record, the limit: pardon some first")
    else:
        effect = "is quarantined: from the next round on, it is in one only if too few others are there"
        why, charges = request.attribution("quarantined"), (known or JudgedHost()).as_of(decision.now)
        judged = records.HostJudged(
            "", "", f"host {host} is {why}", host, charges, clip(why, SENTENCE_MAX), Judge.OPERATOR
        )
    if not request.dry_run:
        decision.record(judged)  # it makes the machine advance all runs, so the reply names none
    return Reply(AdminResult.DONE, f"host {host} {effect}")
