"""Mistakes about operators' requests: forgotten, ignored, or decided without being recorded."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "drain-forgotten-at-a-start",
        "coordinatord.core.machine",
        "a coordinator that starts does not look which of its nodes are drained",
        "        admin.apply_drains(self.cluster)\n",
        "",
    ),
    Mutant(
        "drained-node-let-in",
        "coordinatord.core.queries.admission",
        "a drained node is a member again as soon as it comes back",
        "    why = cluster.why_drained(join.node, join.offer.host)\n    if why is not None:",
        "    why = cluster.why_drained(join.node, join.offer.host)\n    if why is None and cluster.drained is None:",
    ),
    Mutant(
        "stop-of-one-round",
        "coordinatord.core.transitions.table",
        "a job that an operator stops goes on with another round",
        "        Transition(forming, when.stop_asked, stopped, do.end_as_asked, "
        '"{reasons.stop_asked}{reasons.last_step}"),\n',
        "",
    ),
    Mutant(
        "stop-not-recorded",
        "coordinatord.core.transitions.admin",
        "that a job is to end is known to one life of the coordinator alone",
        'decision.record(JobStopAsked(run.job, run.id, request.attribution("stopped")))',
        'run.durable.stop_asked = request.attribution("stopped")',
    ),
    Mutant(
        "stays-without-a-limit",
        "coordinatord.core.transitions.observations",
        "a node that was to leave and stays waits for the next round for ever",
        "            run.arrive(member, now)  # it did not count as ready while it was to leave\n",
        "            pass\n",
        "givers.undrained_world",
    ),
    Mutant(
        "no-new-time-to-give",
        "coordinatord.core.transitions.releases",
        "a node that has waited for a round goes before the nodes of that round have what it alone keeps",
        "            let_stay(run, member, now, gives=True)\n",
        "            pass\n",
        "givers.late_newcomer_world",
    ),
)
