"""Mistakes about kept state: which steps are whole, chosen and protected, and which nodes know of that."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

PLAYS = "keeping_world"

NEEDS = {
    "coincident_keeping_world": {
        "state-of-another-run",
        "stale-round-accepted",
        "holder-out-of-reach",
        "resumes-from-the-first-answer",
    },
    "copying_world": {
        "copies-not-awaited",
        "copies-not-asked-for",
        "one-host-alone-counts-as-copied",
        "copy-of-another-step",
        "given-to-nobody",
    },
    "differing_states.differing_world": {
        "digests-not-compared",
        "majority-taken-silently",
        "differing-step-chosen",
        "alike-before-all-are-heard",
        "alike-as-in-another-round",
        "states-not-compared",
    },
    "lone_nodes.lone_node_world": {"met-plan-not-seen"},
}
"""The histories that show the mutants which matter at one moment, or where nodes copy what others have."""


def _plays(name: str) -> str:
    return next((world for world, names in NEEDS.items() if name in names), PLAYS)


MUTANTS = tuple(
    Mutant(name, module, breaks, old, new, _plays(name))
    for name, module, breaks, old, new in (
        (
            "one-buffer",
            "coordinatord.core.state.kept_index",
            "a new step takes the place of the whole one before all nodes protect it: a node may overwrite either",
            "holders is not None and holders.is_protected_by_all:",
            "holders is not None:",
        ),
        (
            "dropped-before-complete",
            "coordinatord.core.state.kept_index",
            "the step that is whole is given up for a candidate, which may yet be lost",
            "named = (self.whole, self.candidate, self.pinned)",
            "named = (self.candidate or self.whole, self.pinned)",
        ),
        (
            "resumed-step-not-protected",
            "coordinatord.core.state.kept_index",
            "what a round resumes from may be overwritten by the first node that does steps",
            "(self.whole, at) if stays else (at, None)",
            "(None, None)",
        ),
        (
            "lonely-fallback",
            "coordinatord.core.queries.resumption",
            "a node that keeps nothing begins from nothing beside others that resume",
            "if not nodes or not all(member.keeper is not None for member in nodes):",
            "if not nodes:",
        ),
        (
            "parts-missing",
            "coordinatord.core.values.shards",
            "a step counts as whole though a shard of it has no holder",
            "    return reached >= shards",
            "    return reached > 0",
        ),
        (
            "stale-round-accepted",
            "coordinatord.core.state.kept_index",
            "a later step of an older round comes before what was done since",
            "return sorted(self._of_step, reverse=True)",
            "return sorted(self._of_step, key=lambda at: (at.step, at.round), reverse=True)",
        ),
        (
            "oldest-step-chosen",
            "coordinatord.core.state.kept_index",
            "steps are done again that need not be",
            "return sorted(self._of_step, reverse=True)",
            "return sorted(self._of_step)",
        ),
        (
            "damaged-step-tried-again",
            "coordinatord.core.queries.resumption",
            "a round resumes again from what the last one could not resume from",
            "(spoiled is None or at < spoiled.at or at.round >= spoiled.round)",
            "True",
        ),
        (
            "digest-not-heeded",
            "coordinatord.core.transitions.kept_reports",
            "a node reports a wrong digest, and no other step is chosen: the round never begins",
            "if here and kept is not None and kept.restoring is Restoring.FAILED:",
            "if here and kept is not None and kept.restoring is Restoring.NOTHING and kept.problem:",
        ),
        (
            "digests-not-compared",
            "coordinatord.core.state.kept_index",
            "ranks that should have the same state resume from different ones",
            "self.differ |= {*known} != {part.digest}",
            "self.differ = False",
        ),
        (
            "majority-taken-silently",
            "coordinatord.core.state.kept_index",
            "the state that most ranks have counts as the right one",
            "self.differ |= {*known} != {part.digest}",
            "self.differ |= {*known} != {part.digest} and len(self.held) < 3",
        ),
        (
            "differing-step-chosen",
            "coordinatord.core.queries.resumption",
            "a round resumes from a step of which ranks have different states",
            "return not run.kept.differs(at) and (",
            "return (",
        ),
        (
            "alike-before-all-are-heard",
            "coordinatord.core.state.kept_index",
            "ranks count as alike though another one may have another state",
            "elif len(self._first_states) == nodes:",
            "else:",
        ),
        (
            "alike-as-in-another-round",
            "coordinatord.core.state.kept_index",
            "ranks count as alike since those of another round were",
            "        self._first_states.clear()\n",
            "",
        ),
        (
            "states-not-compared",
            "coordinatord.core.state.kept_index",
            "ranks with different states count as alike",
            "            self.alike = False",
            "            self.alike = True",
        ),
        (
            "state-of-another-run",
            "coordinatord.core.transitions.kept_reports",
            "what a node keeps of an earlier run of the job counts for this one",
            "parts = () if kept is None or observed.run != run.id else kept.parts",
            "parts = () if kept is None else kept.parts",
        ),
        (
            "holder-out-of-reach",
            "coordinatord.core.queries.resumption",
            "a round resumes from parts of a node that cannot be reached",
            "return member.is_connected and member.keeper is not None",
            "return member.durable.outcome is None and member.keeper is not None",
        ),
        (
            "withdrawn-part-counts",
            "coordinatord.core.transitions.observations",
            "that a part is withdrawn goes unnoticed until something else happens on that node",
            "        and (observed.kept is before.kept or observed.kept == before.kept)\n",
            "",
        ),
        (
            "parts-of-a-node-that-is-gone",
            "coordinatord.core.state.run",
            "what a node kept counts after it is gone",
            "        self.kept.drop(node, member.observed.kept)\n",
            "",
        ),
        (
            "nearest-step-named",
            "coordinatord.core.queries.halting",
            "workers are to keep a step that some of them have passed before a planned end",
            "return max(halting.promised.values())",
            "return min(halting.promised.values())",
        ),
        (
            "step-named-too-early",
            "coordinatord.core.queries.halting",
            "a step is named before all nodes have promised how far their workers go",
            "len(halting.promised) < len(run.durable.order)",
            "not halting.promised",
        ),
        (
            "unheard-node-cannot-halt",
            "coordinatord.core.state.halt_promises",
            "workers end without a common step if a node that leaves is the first to be heard after a restart",
            "member.observed is UNHEARD or _can_halt(member)",
            "_can_halt(member)",
        ),
        (
            "protected-once",
            "nodeclient.core.kept_goals",
            "a node goes on protecting the first step that it was sent",
            "if desired.protected is not None and self._protected != (run, desired.protected):",
            "if desired.protected is not None and self._protected is None:",
        ),
        (
            "copies-not-awaited",
            "coordinatord.core.state.kept_index",
            "the step that is copied is let go before the copies of the newer one are there",
            "if plan is not None and plan.is_made(holders.held, self.no_copies):",
            "if plan is not None:",
        ),
        (
            "copies-not-asked-for",
            "coordinatord.core.queries.copying",
            "no node is asked to get copies, so no step becomes the whole one where copies are wanted",
            "return tuple(sorted(copies, key=lambda copy: copy.at, reverse=True)[:COPIES_MAX])",
            "return ()",
        ),
        (
            "one-host-alone-counts-as-copied",
            "coordinatord.core.values.copy_plan",
            "a step counts as copied though a shard of it is on one host alone",
            "if once.setdefault(shard, domains[node]) != domains[node]:",
            "if True:",
        ),
        (
            "copy-of-another-step",
            "coordinatord.core.values.copy_plan",
            "a step counts as copied before its copies are there",
            "return all(_has(parts, rank) for source in sources if only in {None, source} for rank in sources[source])",
            "return bool(parts)",
        ),
        (
            "met-plan-not-seen",
            "coordinatord.core.transitions.kept_reports",
            "a step whose copies are all there when they are planned anew stays a candidate: no other one is saved",
            "            run.kept.note_plan(at, plan_for(run, at))\n        run.kept.advance()\n",
            "            run.kept.note_plan(at, plan_for(run, at))\n",
        ),
        (
            "given-to-nobody",
            "coordinatord.core.queries.handover",
            "a node leaves with a shard of which only a silent node has another copy",
            "others = (parts for node, parts in held if node != member.node and is_reachable(run.members[node]))",
            "others = (parts for node, parts in held if node != member.node)",
        ),
        (
            "resumes-from-the-first-answer",
            "nodeclient.core.kept_goals",
            "a node that has to wait until the holders are heard waits for ever",
            "if begins or desired.resume not in {None, self._resume}:",
            "if begins:",
        ),
        (
            "halt-never-over",
            "nodeclient.core.worker_group",
            "workers have no end of time to come to the step that all are to keep",
            "            (self._halt_by, Stimulus.HALT_OVER),\n",
            "",
        ),
        (
            "save-never-over",
            "nodeclient.core.worker_group",
            "workers have no end of time to save what they keep before they are asked to end",
            "            (self.save_by, Stimulus.SAVED),\n",
            "",
        ),
    )
)
