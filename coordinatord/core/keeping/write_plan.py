"""Decides which step is written to the disk and by which nodes, and how long departing nodes wait for that.

The nodes that hold a step write it together, in an attempt (`WriteAttempt`): each writes some of the parts that it
holds. When all have, one of them, the committer, writes the manifest, which makes the step whole. A node is *able* to
write if it is neither lost nor released, and has a directory (`--persist`). It *may* write while it is connected as
well. `table` decides when a write is due, and calls this module; `write_progress` has the progress of the attempt.
"""

from __future__ import annotations

from collections.abc import Collection

from coordinatord.core.keeping.bad_steps import has_doubts
from coordinatord.core.keeping.disk_steps import agreed_step, find_step
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.resume_plan import Needs, grouped, need
from coordinatord.core.keeping.shards import PartsByNode, are_whole, holders_by_shard
from coordinatord.core.keeping.write_progress import (
    BACK_S,
    RETRY_S,
    STUCK_S,
    Persisting,
    StepWriter,
    WriteAttempt,
)
from coordinatord.core.rounds.queries.past_round import is_ending, is_last
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.protocol.kept_state import ATTEMPTS_MAX, WANTED_MAX, KeptStep, PersistOrder, WantedParts
from coordinatord.protocol.text import name_some

END_S = 120.0
"""The most seconds that leaving nodes wait for a write of kept state: a host that is taken away often has only two
minutes."""

END_IDLE_S = 40.0
"""How many seconds departing nodes wait while no node writes a byte. It is 10 s more than the 30 s after which a node
itself reports that its disk hangs, which ends the attempt. This limit is for a node that cannot report it."""

WAITS_S = 10.0
"""How many seconds nodes without a round wait before they write their newest step (`table.last_step_due`). Mostly a
round follows within seconds, and its workers need all places in memory for their own steps."""


# Which step, and when


def unwritten(kept: KeptState) -> list[KeptStep]:
    """Return the whole steps that the disk lacks, the newest first. They are lost if their holders leave now.

    A step has to be protected only while workers of the round live, since nothing else overwrites it. A step of round 0
    was made by an earlier run, and came from the disk.
    """
    index, whole, done = kept.index, kept.protection.whole, kept.disk.found.newest
    if kept.run.durable.state is State.FORMING or kept.run.durable.state.ended or is_last(kept.run):
        steps = index.whole_steps()
    else:  # a holder that does not protect the step yet may overwrite it
        steps = [whole] if whole is not None and index.all_protect_big_state(whole) else []
    return [at for at in steps if at.round > 0 and (done is None or at > done)]


def step_to_write(kept: KeptState) -> KeptStep | None:
    """Return the newest whole step that the disk lacks and that no worker may overwrite; None if there is none."""
    return next((at for at in unwritten(kept) if not overwriter(kept, at)), None)


def overwriter(kept: KeptState, at: KeptStep) -> str:
    """Return a node that is back with workers of an older round, which may overwrite a step; empty if none may.

    That lasts only for moments, until those workers end or the node protects the step.
    """
    held, stale = kept.index.holders(at), kept.run.roll.in_state(MemberState.STALE)
    may = (member.node for member in stale if any(not part.protected for part in held.get(member.node, ())))
    return next(may, "")


def may_write_at(kept: KeptState) -> float | None:
    """Return from when the next step may be written; None if there is none to write, or one is being written.

    A restarted coordinator waits until it has heard all nodes, since a step has the small states of all of them.
    """
    disk = kept.disk
    if disk.attempt is not None or disk.every_s is None or not kept.index.all_heard or step_to_write(kept) is None:
        return None
    return disk.retry_at


def is_unsure(kept: KeptState) -> bool:
    """Whether nodes may keep a step that the disk lacks, since a restarted coordinator has not heard all of them yet.

    It lasts until each node is heard or lost, at most for the outage grace.
    """
    return kept.run.durable.has_had_rounds and not kept.index.all_heard


# Which nodes write what


def new_attempt(kept: KeptState, now: float, without: tuple[str, ...] = ()) -> WriteAttempt | None:
    """Return a new attempt to write the newest whole step; None if the nodes that may write do not have all of it.

    The nodes in `without` write nothing, since they have just failed. The committer is a node that stays, if any does.
    """
    members, able = kept.run.members, _able_holders(kept, step_to_write(kept))
    holders = {node: parts for node, parts in able.items() if may_write(members[node]) and node not in without}
    leaving = [node for node in holders if members[node].leaves]
    plan = _plan_writes(holders, leaving)
    if not plan:
        return None
    first = next(part for parts in holders.values() for part in parts)
    return WriteAttempt(
        _next_attempt(kept),
        first.at,
        first.world_size,
        first.shards,
        {node: StepWriter(members[node].incarnation, parts) for node, parts in plan.items()},
        committer=min(plan, key=lambda node: node in leaving),
        began_at=now,
        progressed_at=now,
        without=without,
    )


def attempt_instead(kept: KeptState, failed: WriteAttempt, now: float) -> WriteAttempt | None:
    """Return an attempt to begin at once after a failed one, without the nodes that failed; None to pause first.

    Only nodes that are about to leave need one at once. Otherwise the next attempt comes after a pause, with all nodes:
    a disk that was full may have room by then.
    """
    if not is_ending(kept.run):
        return None
    return new_attempt(kept, now, failed.without + failed.failed_nodes)


def _next_attempt(kept: KeptState) -> int:
    """Return a number that no attempt has had, not even one before a restart of the coordinator.

    Nodes still report the numbers from before a restart. A number above `ATTEMPTS_MAX` is not believed: the protocol's
    limit must stay out of reach.
    """
    reports = (member.holding.persisting for member in kept.run.members.values())
    reported = (report.attempt for report in reports if report is not None)
    return 1 + max(kept.disk.last_number, *(number for number in reported if number <= ATTEMPTS_MAX), 0)


def _plan_writes(holders: PartsByNode, leaving: Collection[str]) -> dict[str, tuple[WantedParts, ...]] | None:
    """Return the parts of a step that each node writes; None if the holders do not have all of it.

    A shard is written by the holder that has the least to write so far; nodes that stay come before those that leave.
    The small state of a rank is written by the node that writes its shard, or else by another holder. The plan is also
    None if a node would write more groups of parts than a message may have.
    """
    if not are_whole(holders.values()):
        return None
    needs: Needs = {}
    for _, big in sorted(holders_by_shard(holders).items()):
        node, rank = min(big, key=lambda holder: (holder[0] in leaving, len(needs.get(holder[0], ())), holder[1]))
        need(needs, node, rank, big=True)
    small: dict[int, list[str]] = {}
    for node, parts in holders.items():
        for part in parts:
            for _, rank in part.shards_and_ranks() if part.small else ():
                small.setdefault(rank, []).append(node)
    for rank, nodes in sorted(small.items()):
        node = min(nodes, key=lambda node: (rank not in needs.get(node, ()), node in leaving))
        need(needs, node, rank, small=True)
    plan = {node: grouped(wanted) for node, wanted in needs.items()}
    return plan if all(len(parts) <= WANTED_MAX for parts in plan.values()) else None


def _able_holders(kept: KeptState, at: KeptStep | None) -> PartsByNode:
    """Return the parts of a step, by the nodes that have them and are able to write."""
    held = {} if at is None else kept.index.holders(at)
    return {node: parts for node, parts in held.items() if _is_able(kept.run.members[node])}


def may_write(member: Member) -> bool:
    """Whether a node can write parts that it holds to the disk now."""
    return member.session.id is not None and _is_able(member)


def _is_able(member: Member) -> bool:
    is_here = not member.lease.expired and member.durable.outcome is None
    return is_here and member.persist is not None


def order_for(kept: KeptState, member: Member) -> PersistOrder | None:
    """Return the order to write for a node; None if it writes nothing."""
    attempt = kept.disk.attempt
    if attempt is None or not _is_writer(member, attempt):
        return None
    commit = attempt.is_committing and member.node == attempt.committer
    return PersistOrder(
        attempt.at.round,
        attempt.at.step,
        attempt.world_size,
        attempt.shards,
        attempt.writers[member.node].parts,
        commit,
        _undeletable(kept, member) if commit else (),
        small=attempt.small_states if commit else 0,
        attempt=attempt.number,
        aborted=kept.disk.aborted,
    )


def _undeletable(kept: KeptState, member: Member) -> tuple[int, ...]:
    """Return the serials of the old steps on the disk that the committer must not delete.

    They are the step that the round resumes from, since nodes may still read it, and once ranks have differed, the
    newest step in which they had the same state.
    """
    point, durable = kept.run.durable.resume, kept.run.durable
    resumed = None if point is None or durable.stepped else find_step(kept, member, point)
    agreed = agreed_step(kept, kept.run.members.values()) if has_doubts(durable) else None
    return tuple(sorted({step.serial for step in (resumed, agreed) if step is not None}))


# The nodes of an attempt


def writes(kept: KeptState, member: Member) -> bool:
    """Whether a node takes part in the present attempt to write a step."""
    attempt = kept.disk.attempt
    return attempt is not None and _is_writer(member, attempt)


def gone_writers(kept: KeptState, attempt: WriteAttempt) -> list[str]:
    """Return the writers that cannot write any more: they have left, are not connected, or were started again."""
    members = {node: kept.run.members.get(node) for node in attempt.writers}
    return [
        node
        for node, member in members.items()
        if member is None or not (_is_writer(member, attempt) and may_write(member))
    ]


def _is_writer(member: Member, attempt: WriteAttempt) -> bool:
    writer = attempt.writers.get(member.node)
    return writer is not None and writer.incarnation == member.incarnation


# After a failed attempt


def why_failed(kept: KeptState, attempt: WriteAttempt) -> str:
    """Return why an attempt that is over has failed; empty if it has succeeded."""
    if attempt.committed:
        return ""
    if attempt.failed_nodes:
        node = attempt.failed_nodes[0]
        return f"node {node}: {attempt.reports[node].problem}"
    gone = gone_writers(kept, attempt)
    return _gone_text(gone[0]) if gone else f"nothing was written for {STUCK_S:g} s: does the disk hang?"


def why_none(kept: KeptState) -> str:
    """Return why no attempt can begin: holders have no directory or no connection, or would write too many groups."""
    at, members = step_to_write(kept), kept.run.members
    able = _able_holders(kept, at)
    if not are_whole(able.values()):
        held = () if at is None else kept.index.holders(at)
        without = [node for node in held if members[node].lacks_persist]
        named = f"there is no --persist on {name_some(without, len(without))}: start each node with the same one"
        return named if without else "not all of the step is held by nodes that are connected"
    away = next((node for node in able if not may_write(members[node])), None)
    return "a node would have to write too many groups of parts" if away is None else _gone_text(away)


def _gone_text(node: str) -> str:
    return f"node {node} is gone"


def pause_s(kept: KeptState, failed: WriteAttempt | None = None) -> float:
    """Return the pause in seconds after a failed attempt, or (without one) after none could begin.

    It is short only if nodes are about to leave and the disk did not fail: mostly a writer was not connected then.
    """
    has_disk_failed = failed is not None and bool(failed.failed_nodes or not gone_writers(kept, failed))
    return BACK_S if is_ending(kept.run) and not has_disk_failed else RETRY_S


# Departing nodes. Once one is about to leave, `Persisting.ends_at` limits the time of all attempts. `ends_by` says how
# long a node or a run waits, and `is_awaited` whether there is a write to wait for.


def ends_by(kept: KeptState) -> float:
    """Return the time until which a node or run that is to end waits for the disk; `NOW` if it does not.

    It waits for the attempt in progress, or else for the next one.
    """
    disk = kept.disk
    if disk.attempt is not None:
        return min(longest_until(disk, disk.attempt), disk.attempt.progressed_at + END_IDLE_S)
    if disk.ends_at is None or not is_awaited(kept):
        return NOW
    return disk.ends_at


def is_awaited(kept: KeptState) -> bool:
    """Whether nodes that leave now or later wait for the disk: a step is being written, or can be written in time."""
    disk = kept.disk
    is_in_time = disk.ends_at is None or disk.retry_at < disk.ends_at
    return disk.attempt is not None or (is_in_time and _is_in_reach(kept))


def longest_until(disk: Persisting, attempt: WriteAttempt) -> float:
    """Return the time until which nodes wait for a write at most.

    If nodes are about to leave, it is the limit for all attempts. Otherwise only a node whose join timeout is over
    waits, for `END_S` from the beginning of this attempt.
    """
    return attempt.began_at + END_S if disk.ends_at is None else disk.ends_at


def _is_in_reach(kept: KeptState) -> bool:
    """Whether able nodes have all of the step to write, or of a newer one, even if some have to reconnect first."""
    if not kept.index.all_heard:
        return False  # it is not known yet, and callers ask `is_unsure` for that
    at = step_to_write(kept)
    wanted = (each for each in unwritten(kept) if at is None or each >= at)
    return any(are_whole(_able_holders(kept, each).values()) for each in wanted)
