"""The texts about kept state for people: from which step a round resumes, why it cannot, and which step is lost.

They become parts of the reasons that records, logs, nodes and the page show. Many end a sentence, after a semicolon.
Two of them decide as well: no round is formed while `find_obstacle` has a text, and a round is stopped if
`restore_problem` has one.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.keeping.bad_steps import has_spoiled, is_doubtful
from coordinatord.core.keeping.copy_orders import why_uncopied
from coordinatord.core.keeping.disk_steps import agreed_step, any_finder, finds_step
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.resume_choice import differing_step, is_obtainable, resume_point
from coordinatord.core.keeping.write_plan import END_IDLE_S, END_S, is_unsure, longest_until, overwriter, unwritten
from coordinatord.core.rounds.queries.next_round import candidates
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.protocol.kept_state import KeptStep, PersistedStep
from coordinatord.protocol.text import name_some, redone_words, unstepped_words

UNHEARD = "what nodes keep is known when all are heard again"
"""Why no round is formed after a restart of the coordinator, before it knows what each node keeps."""

_GONE = "no node finds it any more"


def resume_text(kept: KeptState, nodes: Sequence[Member]) -> str:
    """Say from which step a round of these nodes resumes, as the end of a sentence; empty if nothing was kept yet."""
    point = resume_point(kept, nodes)
    newer = differing_step(kept, point)
    text = "" if newer is None else f"; {_unused(kept, newer)}"
    if point is not None:
        return f"{text}; resumes {_resumed(kept, point)}"
    if lacking := unstepped(kept):
        return f"{text}; {lacking}"
    has_kept = bool(kept.index) or kept.protection.passed is not None  # `passed` stays when all holders are gone
    if not has_kept or kept.run.durable.reached is None:  # no worker has done a step that could be missed
        return text
    is_spoiled = any(kept.index.is_whole(at) and has_spoiled(kept.run.durable, at) for at in kept.index.steps())
    other = "other " if text else ""
    what = "can be trusted" if is_spoiled else "is whole"
    uncopied = "" if text or is_spoiled else why_uncopied(kept)
    copies = f", and copies were missing: {uncopied}" if uncopied else ""
    return f"{text}; no {other}step that nodes keep {what}{copies}"


def _resumed(kept: KeptState, point: ResumePoint) -> str:
    """Describe the step from which a round resumes: `at step 1,204 from node gpu3's memory, 0 steps redone`."""
    redone = ""
    if point.round or point.redone is not None:  # else the step is of an earlier run, and this run has done none
        redone = f", {redone_words(point.redone, at_least=point.redone_at_least)}"
    lacking = f", without {what}" if (what := unkept(kept)) else ""
    doubted = ", though ranks may differ in it" if is_doubtful(kept.run.durable, point) else ""
    return f"at step {point.step:,} from {memory_of(point)}{redone}{lacking}{doubted}"


def unkept(kept: KeptState) -> str:
    """Return the state that training needs and workers do not keep, as the first such node reports it, else empty."""
    run = kept.run
    held = (member.holding for member in run.members.values() if member.observed.run == run.id)
    return next((holding.unkept for holding in held if holding.unkept), "")


def pageable(kept: KeptState) -> list[str]:
    """Return why saves from a GPU go into memory that is not page-locked, for each such node of the round."""
    members = (member for member in kept.run.members.values() if kept.run.is_about_round(member.observed))
    return [f"node {member.node}: {why}" for member in members if (why := member.holding.pageable)]


def unstepped(kept: KeptState) -> str:
    """Say which ranks of the round never call `ctx.step`, so that no step is kept; empty if all do, or none trains."""
    members = (member for member in kept.run.members.values() if kept.run.is_about_round(member.observed))
    ranks = sorted(rank for member in members for rank in member.holding.unstepped)
    return unstepped_words(ranks) if ranks else ""


def memory_of(point: ResumePoint) -> str:
    """Describe where a step is: `disk`, `node gpu3's memory`, `the memory of nodes gpu1, gpu3`."""
    if point.disk is not None:
        return "disk"
    count = len(point.nodes) + point.others
    return f"node {point.nodes[0]}'s memory" if count == 1 else f"the memory of {name_some(point.nodes, count)}"


def _unused(kept: KeptState, at: KeptStep) -> str:
    """Explain why no round resumes from a step in which ranks differ."""
    return f"step {at.step:,} is not used: {_difference(kept, at)}"


def _difference(kept: KeptState, at: KeptStep) -> str:
    """Name two ranks that have different states of one shard of a step, if both are still held."""
    first_of_shard: dict[int, tuple[int | None, str]] = {}
    for node, parts in sorted(kept.index.holders(at).items()):
        for part in parts:
            for shard, rank in part.shards_and_ranks() if part.digest is not None else ():
                digest, other = first_of_shard.setdefault(shard, (part.digest, f"rank {rank} on node {node}"))
                if digest != part.digest:
                    return f"{other} and rank {rank} on node {node} should have the same state of it, and do not"
    return "ranks should have had the same state of it, and did not"


def find_obstacle(kept: KeptState) -> str:
    """Explain why a round that is formed now might lose all training, and what to do; empty if it may be formed.

    If a directory is not mounted on one host, or a file cannot be read, a round that began anew would soon replace the
    old steps by its own.
    """
    nodes = candidates(kept.run) if kept.disk.found.has_any else ()
    text = ""
    if nodes and resume_point(kept, nodes) is None:
        found = any_finder(kept)
        text = _nothing_found(kept, nodes) if found is None else _not_found_by_all(kept, nodes, *found)
    return text or (UNHEARD if is_unsure(kept) else "")


def _nothing_found(kept: KeptState, nodes: Sequence[Member]) -> str:
    """Say why no node finds a usable step on the disk.

    It is empty if none was ever written there, or if ranks differ in the newest one: no round may resume from that.
    """
    unable = next((member for member in nodes if member.holding.unusable), None)
    if unable is not None:
        ways = "mend that, or remove the step from --persist, if all are to begin anew"
        return f"node {unable.node} can use nothing on the disk: {unable.holding.unusable}: {ways}"
    written = kept.disk.found.lost or kept.disk.found.newest
    if written is None or kept.index.differs(written):
        return ""
    text = f"step {written.step:,} was written to the disk, and node {nodes[0].node} does not find it any more"
    return f"{text}: is --persist still mounted? All would begin anew"


def _not_found_by_all(kept: KeptState, nodes: Sequence[Member], finder: str, step: PersistedStep) -> str:
    """Say which of the nodes does not find a step on the disk; empty if all do."""
    member = next((member for member in nodes if not finds_step(member, step)), None)
    if member is None:
        return ""
    step_text = f"step {step.at.step:,} on the disk"
    present = kept.run.members.get(finder)  # it may have been started again without --persist
    finds = present is not None and finds_step(present, step)
    finds_text = f"finds {step_text}" if finds else f"found {step_text} before it went"
    text = f"node {finder} {finds_text}, and node {member.node} does not"
    if why := member.holding.unusable:
        return f"{text}: {why}. All would begin anew"
    if member.persist is None:
        return f"{text}: start it with --persist too, or all would begin anew"
    return f"{text}: is --persist the same directory on both, and mounted? All would begin anew"


def staying_step(kept: KeptState, since: KeptStep) -> str:
    """Say which step stays on the disk though ranks may differ from `since` on, as the end of a sentence.

    It is empty while a node makes a newer step whole: the node may be deleting the older one right now.
    """
    if kept.disk.is_committing:
        return ""
    step = agreed_step(kept, kept.run.roll.inside, since)
    return "" if step is None else f"; step {step.at.step:,} stays on the disk"


def restore_problem(kept: KeptState) -> str:
    """Explain why a node of the round cannot get the state that it resumes from; empty if all can, or have it."""
    point, failed = kept.run.durable.resume, kept.failed
    if point is None or (not failed and is_obtainable(kept)):
        return ""
    if kept.index.differs(point.at):
        return _unused(kept, point.at)
    step = f"the state of step {point.step:,}"
    if not failed:
        return f"{step} is no longer whole: a node has lost its part"
    node, problem = next(iter(failed.items()))
    more = f", nor could {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"node {node} could not get {step}{more}: {problem}"


def last_write(kept: KeptState) -> str:
    """Say which step is written before the run ends, and why the last attempt to write one failed, if it did."""
    disk = kept.disk
    at = next(iter(unwritten(kept)), None) if disk.attempt is None else disk.attempt.at
    what = "what is kept" if at is None else f"step {at.step:,}"
    return f"{what} is written to the disk first" + (f"; the last write failed: {disk.problem}" if disk.problem else "")


def disk_problem(kept: KeptState) -> str:
    """Say why the disk lacks the last step: it could not be written, is gone, or ranks differ in it; else empty."""
    found, at = kept.disk.found, None if kept.disk.every_s is None else differing_step(kept, None)
    if kept.disk.problem:
        return kept.disk.problem
    if found.lost is not None:
        return f"step {found.lost.step:,} was there, and {_GONE}"
    if at is None or any(newer is not None and newer > at for newer in (found.newest, kept.index.newest_whole)):
        return ""
    return _unused(kept, at)


def lost_step(kept: KeptState) -> str:
    """Say which step is lost if nodes leave now, and why it is not on the disk; empty if none is.

    It is the end of a sentence, and empty without `--persist`: then nobody expects it on a disk. If a step is being
    written, the text says that this took too long. So callers use it only once `ends_by` is over.
    """
    disk, found, failed = kept.disk, kept.disk.found, kept.disk.failed_at
    if failed is not None and found.newest is not None and failed <= found.newest:
        failed = None  # the disk has a step as new as that; otherwise it is missing, even if its holders have left
    missing = (next(iter(unwritten(kept)), None), failed, found.lost)
    at = max((step for step in missing if step is not None), default=None)
    if disk.every_s is None or at is None:
        return ""
    node = overwriter(kept, at)
    why = f"workers of node {node} may overwrite it" if node else disk.problem
    why = why or (_GONE if at == found.lost else "no node could write it")
    if disk.attempt is not None:  # one limit of `ends_by` is over: `END_IDLE_S` without a byte, or `longest_until`
        is_idle = disk.attempt.progressed_at + END_IDLE_S < longest_until(disk, disk.attempt)
        slow = f"nodes that leave wait {END_S:g} s for it at most"
        why = f"nothing was written for {END_IDLE_S:g} s" if is_idle else slow
    return f"; step {at.step:,} is not on the disk: {why}"


def last_step(kept: KeptState) -> str:
    """Say that the newest step of a run that ends is on the disk, or why it is lost; empty if there is none.

    Workers may have done more steps than that: one was not kept, or a part of it went with its node. A run that ends
    before it has written a step leaves that of an earlier run where it is.
    """
    lost, on_disk, done = lost_step(kept), disk_step(kept), kept.run.last_step
    if lost or on_disk is None:
        return lost
    later = "" if done is None or done <= on_disk else f", and no later one up to {done:,}"
    still = "still " if kept.disk.found.newest is None else ""
    return f"; step {on_disk:,} is {still}on the disk{later}"


def disk_step(kept: KeptState) -> int | None:
    """Return the newest step on the disk from which the job can go on, as far as is known; None without one."""
    newest, found = kept.disk.found.newest, any_finder(kept)
    if newest is not None:
        return newest.step
    return None if found is None else found[1].at.step
