"""Decides which nodes are let in, and to which run.

A node that connects sends a `Join` with its job, its settings and the last round that it knows. It may be new or back
after a lost connection, come late to a run that is over, or have other settings than the nodes before it. Each check
raises a refusal that says what is wrong and what to do. `run_to_join` makes the checks, and the functions after it are
in the same order. The last two are about the whole coordinator: the machine and the registry call them.
"""

from __future__ import annotations

from coordinatord.core.rounds.events import Connected
from coordinatord.core.rounds.state.cluster import Cluster
from coordinatord.core.rounds.state.durable import DurableCluster
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import RANKS_MAX
from coordinatord.protocol.messages import DIGEST_LETTERS, Join, RefusalCode, Refused
from coordinatord.protocol.spec_flags import drain_laggards, hang_timeout, nnodes, restarts
from coordinatord.protocol.text import clip


class RefusedError(OperationalError):
    """A node is not let in. With `retry` it comes again by itself, since the cause may go away. Nothing has changed."""

    def __init__(self, code: RefusalCode, text: str, *, retry: bool) -> None:
        self.refused = Refused(code, clip(text), retry)
        super().__init__(self.refused.message)


def run_to_join(cluster: Cluster, event: Connected, store_error: str | None, now: float) -> Run | None:
    """Return the job's run if it decides what becomes of a node; None if the node simply opens a new run.

    The node joins that run, or gets its outcome, or ends it to open another one in its place (see `is_replaceable`).
    `store_error` is why nothing can be recorded. Raises `RefusedError`.
    """
    join, durable = event.join, cluster.durable
    check_forgotten(durable, join)
    check_own(durable, join)
    run = cluster.jobs.get(join.job)
    if run is None or opens_another_run(run, join, now):
        check_drained(durable, join)
        return None  # `Registry.open` checks whether it can be recorded, and how many jobs there are
    known = run.members.get(join.node)
    check_token(known, event)
    if known is None or known.incarnation != join.incarnation or run.spec != join.spec:
        # Something has to be recorded: a new process, or another run in place of this one. `check_not_degraded` comes
        # first, since later checks may refuse a node for good, because of a record that will never be durable. A
        # process that is only back is a member already: if it is drained, `apply_drains` makes it leave.
        check_not_degraded(store_error)
        if not run.durable.state.ended:  # a run that has ended only sends its outcome
            check_drained(durable, join)
            check_script(run, join)
    check_incarnation(known, join)
    if not is_replaceable(run, join):
        check_spec(run, join)
        check_size(run, join)
    return run


def check_forgotten(cluster: DurableCluster, join: Join) -> None:
    """Refuse a node that comes back to a run that was forgotten: it would open another one. Raises `RefusedError`."""
    why = cluster.forgotten.get(join.observed.run)
    if why is not None:
        text = f"job {join.job}: the run that this node took part in is over, and was {why}"
        raise RefusedError(RefusalCode.FORGOTTEN, text, retry=False)


def check_own(cluster: DurableCluster, join: Join) -> None:
    """Refuse a node that looks for the coordinator of its run, if this is another one. Raises `RefusedError`.

    Its workers train on meanwhile. In a run of this coordinator they would be ended.
    """
    last, run = cluster.jobs.get(join.job), join.observed.run
    if join.awaits_own and not (last is not None and last.knows(run)):
        text = f"this coordinator does not know run {run} of job {join.job}: it is another one, or has lost its state"
        raise RefusedError(RefusalCode.FORGOTTEN, text, retry=True)


def opens_another_run(run: Run, join: Join, now: float) -> bool:
    """Whether a node opens another run of a job, rather than join this run or get its outcome.

    A node that was in this run gets the outcome. A spare was in no round, and is known only by its process. If the job
    is concluded, a process with the same spec that started before the end gets the outcome too: it meant to join this
    run, and another training would overwrite the result. If the time of the end is not known, it may be long ago, and
    the node opens another run.
    """
    known = run.members.get(join.node)
    was_in = join.observed.run == run.id or (known is not None and known.incarnation == join.incarnation)
    if was_in or not run.durable.state.ended:
        return False
    began_before = join.age_s is not None and now - join.age_s < run.durable.entered_at
    return not (run.durable.concluded and run.is_end_dated and began_before and join.spec == run.spec)


def check_drained(cluster: DurableCluster, join: Join) -> None:
    """Refuse a drained node until it is undrained. Raises `RefusedError`."""
    drained = cluster.why_drained(join.job, join.node, join.offer.host)
    if drained is not None:
        name, why = drained
        text = f"{why}; to let it in: nodeclient undrain {name}"
        raise RefusedError(RefusalCode.DRAINED, text, retry=True)


def check_token(known: Member | None, event: Connected) -> None:
    """Refuse a node whose id is in use under another access token, until that lease is over. Raises `RefusedError`.

    Otherwise the bearer of any token could take the place of any node, also with its incarnation, which is no secret.
    """
    if known is None or known.lease.expired or known.session.revoked or known.session.token in {"", event.token}:
        return
    text = (
        f"node {known.node} of job {event.join.job} is here already, from {known.session.peer_address}, with the token"
        f" {known.session.token}; this one has the token {event.token}: if it is the same node, revoke its old token"
        f" (coordinatord token revoke {known.session.token}), else give each node its own --node-id"
    )
    raise RefusedError(RefusalCode.FORBIDDEN, text, retry=True)


def check_not_degraded(store_error: str | None) -> None:
    """Refuse a new node while nothing can be recorded. Raises `RefusedError`."""
    if store_error is not None:
        text = f"this coordinator cannot record anything, so it takes in no node until it can: {store_error}"
        raise RefusedError(RefusalCode.DEGRADED, text, retry=True)


def check_script(run: Run, join: Join) -> None:
    """Refuse a node with another script than a node of its role: these are two trainings. Raises `RefusedError`."""
    other = other_command(run, join)
    # A command begins with the digest of its script. Other arguments of the same script are only remarked on.
    if other is not None and _command_of(other)[:DIGEST_LETTERS] != join.command[:DIGEST_LETTERS]:
        text = (
            f"another training runs under job id {join.job}, and node {other.node} of it starts another script: give"
            f" this one a --job-id of its own, or end that one first: nodeclient stop {join.job}"
        )
        raise RefusedError(RefusalCode.SPEC_DIFFERS, text, retry=False)


def other_command(run: Run, join: Join) -> Member | None:
    """Return a connected member of the same role that was started with another command; None if none is found.

    Only the first connected member is compared, so that the cost of a join does not grow with the number of nodes.
    """
    others = (member for member in run.members.values() if member.node != join.node and member.session.id is not None)
    first = next((member for member in others if member.offer.role == join.offer.role), None)
    return first if first is not None and join.command and _command_of(first) not in {"", join.command} else None


def _command_of(member: Member) -> str:
    return "" if member.session.join is None else member.session.join.command


def check_incarnation(known: Member | None, join: Join) -> None:
    """Refuse a node process that a younger one with the same node id has replaced. Raises `RefusedError`.

    If the known process is not connected, or is silent, any other may replace it. A successor may have a lower
    incarnation, which is the time of its start, if the clock of its host is behind. A late join of the same process is
    refused as well, since the process has joined again.
    """
    if known is None:
        return
    if join.incarnation == known.incarnation and _is_older(join, known.session.join):
        text = f"node {join.node} joined job {join.job} once more since it sent this"
        raise RefusedError(RefusalCode.SUPERSEDED, text, retry=True)
    if known.session.id is None or known.lease.expired:
        return
    if join.incarnation < known.incarnation:
        raise superseded(join.job, known)


def _is_older(join: Join, last: Join | None) -> bool:
    """Whether a process sent a `Join` before its last known one, by its own age in both."""
    return last is not None and last.age_s is not None and join.age_s is not None and join.age_s < last.age_s


def superseded(job: str, younger: Member) -> RefusedError:
    """Return the refusal of the older of two processes with one node id."""
    text = (
        f"another nodeclient with the node id {younger.node} joined job {job} later, from"
        f" {younger.session.peer_address} (incarnation {younger.incarnation}): give each its own --node-id"
    )
    return RefusedError(RefusalCode.SUPERSEDED, text, retry=False)


def is_replaceable(run: Run, join: Join) -> bool:
    """Whether a run ends so that a node may open one with another spec: no node is left in it."""
    return run.spec != join.spec and run.roll.deserted


def check_spec(run: Run, join: Join) -> None:
    """Refuse a node whose job spec differs from the run's. Raises `RefusedError`."""
    if join.spec == run.spec:
        return
    differences = [
        f"{flag} is {theirs} on this node ({join.node}), but {ours} on {run.durable.opener}, which was first"
        for flag, theirs, ours in (
            ("--nnodes", nnodes(join.spec), nnodes(run.spec)),
            ("--max-restarts", restarts(join.spec), restarts(run.spec)),
            ("--scale-up", join.spec.scale_up, run.spec.scale_up),
            ("--hang-timeout", hang_timeout(join.spec), hang_timeout(run.spec)),
            ("--max-futile-rounds", join.spec.max_futile_rounds, run.spec.max_futile_rounds),
            ("--drain-laggards", drain_laggards(join.spec), drain_laggards(run.spec)),
            ("--on-divergence", join.spec.on_divergence, run.spec.on_divergence),
        )
        if theirs != ours
    ]
    remedy = f"start all nodes with the same values, or end this run first: nodeclient stop {join.job}"
    if join.spec.launcher is not run.spec.launcher:  # the other differences follow from this one
        opener = f"{run.durable.opener}, which was first, by {run.spec.launcher}"
        differences = [f"this node ({join.node}) is started by {join.spec.launcher}, but {opener}"]
        remedy = "start all nodes in the same way, or give one of the two another job id"
    if differences:
        text = f"job {join.job}: {'; '.join(differences)}: {remedy}"
        raise RefusedError(RefusalCode.SPEC_DIFFERS, text, retry=False)


def check_size(run: Run, join: Join) -> None:
    """Refuse a node that would bring the run above the limit of ranks. Raises `RefusedError`."""
    known = run.members.get(join.node)
    others = run.roll.workers - (known.offer.workers if known else 0)
    if others + join.offer.workers > RANKS_MAX:
        more = join.offer.workers
        text = f"job {join.job} has {others} workers: with {more} more it would exceed {RANKS_MAX}, the limit"
        raise RefusedError(RefusalCode.LIMIT, text, retry=True)


def check_room(nodes: int, nodes_max: int) -> None:
    """Refuse a node beyond the limit of the whole coordinator. Raises `RefusedError`."""
    if nodes >= nodes_max:
        text = f"this coordinator already has {nodes_max} nodes, its limit"
        raise RefusedError(RefusalCode.LIMIT, text, retry=True)


def too_many_jobs(jobs_max: int) -> RefusedError:
    """Return the refusal of the first node of a job beyond the limit."""
    text = f"this coordinator already has {jobs_max} live jobs, its limit"
    return RefusedError(RefusalCode.LIMIT, text, retry=True)
