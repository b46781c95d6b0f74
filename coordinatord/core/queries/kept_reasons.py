"""Describes kept state in words: where a step is that a round resumes from, and why another step is of no use."""

from __future__ import annotations

from coordinatord.core.queries.resumption import DiskObstacle, differing_step
from coordinatord.core.state.run import Run
from coordinatord.core.values.shards import ResumePoint
from coordinatord.protocol.kept_parts import KeptStep
from coordinatord.protocol.text import name_some


def resumed(run: Run, point: ResumePoint) -> str:
    """Describe the step from which a round resumes: `at step 1,204 from node gpu3's memory, 0 steps redone`."""
    redone = "" if point.redone is None else f", {point.redone:,} {'step' if point.redone == 1 else 'steps'} redone"
    lacking = f", without {what}" if (what := unkept(run)) else ""
    return f"at step {point.step:,} from {memory_of(point)}{redone}{lacking}"


def unkept(run: Run) -> str:
    """Return what training depends on and nobody keeps, as the first node says that knows; empty if none does."""
    held = (member.observed.kept for member in run.members.values() if member.observed.run == run.id)
    return next((kept.unkept for kept in held if kept is not None and kept.unkept), "")


def memory_of(point: ResumePoint) -> str:
    """Describe where a step is: `disk`, `node gpu3's memory`, `the memory of nodes gpu1, gpu3`."""
    if point.disk is not None:
        return "disk"
    if not point.nodes:
        return "memory"
    count = len(point.nodes) + point.others
    return f"node {point.nodes[0]}'s memory" if count == 1 else f"the memory of {name_some(point.nodes, count)}"


def left_out(run: Run, point: ResumePoint | None) -> str:
    """Explain why a round does not resume from the newest step that differs between ranks; empty if there is none."""
    at = differing_step(run, point)
    return "" if at is None else f"step {at.step:,} is not used: {_difference(run, at)}"


def _difference(run: Run, at: KeptStep) -> str:
    """Name two ranks that have different states of a step, where these should be the same."""
    seen: dict[int, tuple[int, str]] = {}
    for node, parts in sorted(run.kept.holders(at).items()):
        for part in parts:
            for shard, rank in part.shards_and_ranks() if part.digest is not None else ():
                digest, other = seen.setdefault(shard, (part.digest or 0, f"rank {rank} on node {node}"))
                if digest != part.digest:
                    return f"{other} and rank {rank} on node {node} should have the same state of it, and do not"
    return "ranks should have had the same state of it, and did not"


def about_disk(run: Run, obstacle: DiskObstacle) -> str:
    """Explain why what is on the disk is of no use to a node, and what to do."""
    other, found, written = obstacle.node, obstacle.found, run.kept.disk.step
    if found is None and obstacle.why:
        ways = "mend that, or remove the step from --persist, if all are to begin anew"
        return f"node {other.node} can use nothing on the disk: {obstacle.why}: {ways}"
    if found is None:
        step_text = "a step" if written is None else f"step {written.step:,}"
        text = f"{step_text} was written to the disk, and node {other.node} does not find it any more"
        return f"{text}: is --persist still mounted? All would begin anew"
    knows, step = found
    step_text = f"step {step.at.step:,} on the disk"
    finds = f"finds {step_text}" if knows in run.members else f"found {step_text} before it went"
    text = f"node {knows} {finds}, and node {other.node} does not"
    if obstacle.why:
        return f"{text}: {obstacle.why}. All would begin anew"
    if other.keeper is None or other.keeper.persist is None:
        return f"{text}: start it with --persist too, or all would begin anew"
    return f"{text}: is --persist the same directory on both, and mounted? All would begin anew"


def unrestorable(run: Run) -> str:
    """Explain which node cannot get what the workers resume from, and why."""
    point, failed = run.durable.resume, run.kept.failed
    step = "what the workers resume from" if point is None else f"the state of step {point.step:,}"
    if point is not None and run.kept.differs(point.at):
        return left_out(run, point)
    if not failed:
        return f"{step} is no longer whole: a node has lost its part"
    node, problem = next(iter(failed.items()))
    more = f", nor could {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"node {node} could not get {step}{more}: {problem}"
