"""Passes the answers of workers to the modules that asked for them."""

from __future__ import annotations

from coordinatord.core.events import Compared, Looked
from coordinatord.core.state.run import Run
from coordinatord.core.transitions import hang_looks, laggards
from coordinatord.core.transitions.decision import Decision


def take_in(run: Run, event: Looked | Compared, decision: Decision) -> list[Run]:
    """Take in what the workers of a run have answered; return the runs in which something may follow."""
    match event:
        case Looked():
            hang_looks.take_in(run, event, decision.now)
            return [run]
        case Compared():
            return hang_looks.take_in_rest(run, event) + laggards.take_in(run, event, decision)
