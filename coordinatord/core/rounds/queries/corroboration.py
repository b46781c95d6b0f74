"""Finds a node that is gone before its time to reconnect is over, so that the next round begins sooner.

Two signs together prove it. A closed session may be a fault of the network, so by itself it leaves the node a second to
reconnect. A worker that failed because a peer closed a connection shows that some process has ended, but not which. If
all other nodes have ended their workers, and none of these explains that failure, the process was on the node whose
session is closed.
"""

from __future__ import annotations

from coordinatord.core.rounds.state.member import MAY_HAVE_WORKERS, Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.hints.network import lost_connection
from coordinatord.protocol.messages import Failure


def node_gone(run: Run) -> Member | None:
    """Return the node of the round whose workers are proved to be gone; None if none is.

    The check costs O(nodes), but only runs when the round waits for nothing else.
    """
    # A node that is gone already might explain the failure as well.
    waits_for_one = run.roll.with_workers == 1 and run.roll.round_size == len(run.durable.order)
    if not waits_for_one or not run.evidence.failures:
        return None
    (suspect,) = run.roll.in_state(*MAY_HAVE_WORKERS)
    failures = run.evidence.failures.values()
    first_at = min(failure.at for failure in failures)
    if not _may_have_caused(run, suspect, first_at):
        return None
    for member in run.roll.inside:
        if member is not suspect and not _is_innocent(member, first_at):
            return None
    return suspect if all(_is_consequence(failure.failure) for failure in failures) else None


def _may_have_caused(run: Run, suspect: Member, first_at: float) -> bool:
    """Whether a node's session had closed when the first worker failed, or soon after, and not because of the stop."""
    stopped_at = run.evidence.consequences_from
    failed_after_stop = stopped_at is not None and first_at >= stopped_at
    is_ending = suspect.node in run.evidence.failures or suspect.state is MemberState.STOPPING
    return (
        suspect.session.vanished
        and suspect.silent_since <= first_at + run.policy.collateral_s
        and not (failed_after_stop or is_ending or _may_have_closed(suspect))
    )


def _is_innocent(member: Member, first_at: float) -> bool:
    """Whether a node was connected when the first worker failed, still is, and has closed no connection to a peer."""
    was_connected = member.session.id is not None and member.session.connected_at <= first_at
    return was_connected and member.lease.is_in_touch() and not _may_have_closed(member)


def _may_have_closed(member: Member) -> bool:
    """Whether workers of a node may have closed their connections, though none of them has failed."""
    return member.leaves or bool(member.observed.ended) or member.state is MemberState.SUCCEEDED


def _is_consequence(failure: Failure) -> bool:
    """Whether all failed workers of a node failed because a connection to a peer was closed."""
    return lost_connection(failure) and all(follower.same_error for follower in failure.followers)
