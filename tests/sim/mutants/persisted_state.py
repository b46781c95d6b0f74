"""Mistakes about steps on a disk: when one is whole, which is resumed from, and which nodes have to see it.

Two more are about arrivals, in a world of jobs that take them in at once or never.
"""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

PLAYS = "persisting_world"

NEEDS_A_COINCIDENCE = {
    "view-of-who-is-gone-ignored",
    "unusable-step-ignored",
    "written-to-the-disk-though-gone",
    "last-step-left-out",
    "kept-forgotten-at-restart",
    "nothing-written-after-a-restart",
}
"""The mutants that only matter at the end of one run, or at the beginning of the next."""


LEAVES = {
    "last-write-not-tried-again",
    "newer-step-taken-along",
    "lost-step-not-named",
    "slow-disk-not-awaited",
    "step-lost-in-vain",
    "failed-for-good-and-unwritten",
}
"""The mutants that show where all nodes leave."""


def _plays(name: str) -> str:
    if name in LEAVES:
        return "leavers.leaving_world"
    return "coincident_persisting_world" if name in NEEDS_A_COINCIDENCE else PLAYS


MUTANTS = tuple(
    Mutant(name, module, breaks, old, new, _plays(name))
    for name, module, breaks, old, new in (
        (
            "manifest-first",
            "coordinatord.core.queries.conditions",
            "a step is made whole before all nodes have written their parts",
            "return _when(work is not None and work.written and not work.committing)",
            "return _when(work is not None and not work.committing)",
        ),
        (
            "written-and-overwritten",
            "coordinatord.core.transitions.actions",
            "workers overwrite the step that is being written",
            "    run.kept.pinned = work.at\n",
            "",
        ),
        (
            "view-ignored-when-full",
            "coordinatord.core.queries.conditions",
            "a training begins anew though a node finds a step on the disk: all nodes that may join are there",
            "return _pause_end(run) if disk_obstacle(run) is None else None",
            "return _pause_end(run)",
        ),
        (
            "view-ignored-when-settled",
            "coordinatord.core.queries.conditions",
            "a training begins anew though a node finds a step on the disk: nobody else comes",
            "if run.durable.stop_asked or disk_obstacle(run) is not None:",
            "if run.durable.stop_asked:",
        ),
        (
            "view-of-one-node",
            "coordinatord.core.queries.persistence",
            "a round resumes from a step on the disk that not all of its nodes find",
            "if all((persisted.run, persisted.at) in found for found in others):",
            "if True:",
        ),
        (
            "view-of-who-is-gone-ignored",
            "coordinatord.core.state.kept_index",
            "a training begins anew when the node that found a step has waited for long enough",
            "        self.disk.miss(node, () if held is None else held.persisted)\n",
            "",
        ),
        (
            "step-of-another-run-is-newer",
            "coordinatord.core.queries.persistence",
            "what an earlier run has on the disk comes before what this run has done",
            "first.round if ours else 0, first.step,",
            "first.round, first.step,",
        ),
        (
            "disk-before-memory",
            "coordinatord.core.queries.resumption",
            "a round resumes from the disk though memory has a newer step",
            "return disk if disk is not None and (kept is None or disk.at > kept.at) else kept",
            "return disk or kept",
        ),
        (
            "unusable-step-ignored",
            "coordinatord.core.queries.resumption",
            "a training begins anew beside a step on the disk that its nodes cannot read",
            "        hindered = [member for member in nodes if unusable_to(member)] or (nodes[:1] if gone else [])\n",
            "        hindered = nodes[:1] if gone else []\n",
        ),
        (
            "vanished-step-ignored",
            "coordinatord.core.queries.resumption",
            "a training begins anew when no node sees any more the step that it has written to the disk",
            "or (nodes[:1] if gone else [])",
            "or []",
        ),
        (
            "disk-spoils-memory",
            "coordinatord.core.transitions.apply",
            "what memory has is given up since a step on the disk could not be read",
            "if record.condition == _SPOILS and run.resume is not None and run.resume.disk is None:",
            "if record.condition == _SPOILS and run.resume is not None:",
        ),
        (
            "arrivals-not-gathered",
            "coordinatord.core.queries.conditions",
            "each of eight new nodes costs a round",
            "    return _settle_end(run)\n\n\ndef _pause_end",
            "    return NOW\n\n\ndef _pause_end",
        ),
        (
            "arrivals-not-wanted",
            "coordinatord.core.queries.conditions",
            "a round ends for nodes that the job does not want",
            "    if run.spec.scale_up is ScaleUp.NEVER:\n        return None\n",
            "",
        ),
        (
            "gone-writer-awaited",
            "coordinatord.core.queries.persistence",
            "a step is awaited that a node was to write which is gone",
            "return -math.inf if work.committed or work.failed or _gone(run, work) else work.moved_at + STUCK_S",
            "return -math.inf if work.committed or work.failed else math.inf",
        ),
        (
            "written-to-the-disk-though-gone",
            "coordinatord.core.queries.persistence",
            "a run that ends does not wait for its last step to be on the disk",
            "return min(_longest(disk, disk.work), disk.work.moved_at + END_IDLE_S)",
            "return -math.inf",
        ),
        (
            "slow-disk-not-awaited",
            "coordinatord.core.queries.persistence",
            "a run that ends gives its last step up while the disk may still be slow",
            "END_IDLE_S = 40.0\n",
            "END_IDLE_S = 20.0\n",
        ),
        (
            "last-step-left-out",
            "coordinatord.core.queries.conditions",
            "a run ends when an older step is on the disk that was being written as its round ended",
            "    if at is None or persistence.is_ending(run):\n",
            "    if at is None:\n",
        ),
        (
            "step-lost-in-vain",
            "coordinatord.core.queries.conditions",
            "nodes that have waited in vain take along a step that the disk lacks",
            "    return max(at, _by_patience(run, run.durable.entered_at + persistence.WAITS_S))\n",
            "    return None\n",
        ),
        (
            "kept-forgotten-at-restart",
            "coordinatord.core.queries.conditions",
            "a run that is to end does so when its coordinator is started again, though nodes keep a newer step",
            "return None if persistence.is_unsure(run) else persistence.ends_by(run)",
            "return persistence.ends_by(run)",
        ),
        (
            "nothing-written-after-a-restart",
            "coordinatord.core.state.run",
            "a round that outlives its coordinator has no step written to the disk any more",
            "        self.kept.disk.since = -math.inf  # whether the last step that was due was written is not known\n",
            "",
        ),
        (
            "last-write-not-tried-again",
            "coordinatord.core.queries.persistence",
            "nodes that all leave do so when the disk was full for a moment",
            "    return disk.ends_at\n",
            "    return -math.inf\n",
        ),
        (
            "newer-step-taken-along",
            "coordinatord.core.queries.handover",
            "a node with a newer step leaves while others write an older one",
            "    at, done = step_to_write(run), run.kept.disk.step",
            "    at, done = None if run.kept.disk.work is not None else step_to_write(run), run.kept.disk.step",
        ),
        (
            "lost-step-not-named",
            "coordinatord.core.queries.reasons",
            "the reason of the end does not name the lost step of nodes that all leave",
            'return "" if lost is None else f"; step {lost[0]:,} is not on the disk: {lost[1]}"',
            'return ""',
        ),
        (
            "failed-for-good-and-unwritten",
            "coordinatord.core.queries.conditions",
            "a job that has failed for good takes its last step along",
            "    return persistence.ends_by(run)\n\n\ndef given_up",
            "    return NOW\n\n\ndef given_up",
        ),
        (
            "none-of-the-last-steps-kept",
            "nodeclient.core.disk_retention",
            "the steps on the disk are deleted as soon as one more is there",
            "step.serial < newest[-1]",
            "step.serial <= newest[0]",
        ),
    )
)
