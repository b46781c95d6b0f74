"""Takes in when the workers of a round arrived in their last collectives, and drains the node of a laggard."""

from __future__ import annotations

from coordinatord.core.events import Compared
from coordinatord.core.queries.arrivals import laggard_to_drain, sentence, trains
from coordinatord.core.state.run import Run
from coordinatord.core.transitions import admin
from coordinatord.core.transitions.decision import Decision
from coordinatord.core.values.records import NodeDrained
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.text import clip


def take_in(run: Run, event: Compared, decision: Decision) -> list[Run]:
    """Take in what a look has shown; return the runs in which something may follow.

    A node that is drained may be in several runs. A look at a round that is over, or no longer trains, is ignored.
    """
    if event.round != run.durable.round or not trains(run):
        return []
    run.lateness.take_in(event.nodes, run.progress.usual_s, decision.now)
    return _drain(run, decision)


def _drain(run: Run, decision: Decision) -> list[Run]:
    """Drain the node of a laggard, if the job wants that and can do without it."""
    found, known = laggard_to_drain(run), run.lateness.known
    if found is None or known is None or len(decision.cluster.durable.drained) >= admin.DRAINED_MAX:
        return []
    why = f"{found.node} drained for its lateness (--drain-laggards): {sentence(known, found)}"
    decision.record(NodeDrained("", "", clip(why, MESSAGE_MAX), found.node))
    return admin.apply_drains(decision.cluster)
