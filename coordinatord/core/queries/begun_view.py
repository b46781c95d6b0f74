"""How the workers of a run's round were begun, by what its nodes report."""

from __future__ import annotations

from coordinatord.core.state.run import Run
from coordinatord.protocol.begun_answers import BegunStatus
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.text import clip
from coordinatord.protocol.worker_starts import Begun


def begun_of(run: Run) -> Begun | None:
    """Return how the workers of the present round were begun, and the first node of which some were not in place.

    None if no node says: all workers are cold then, and could not be otherwise.
    """
    known = [
        (member.node, member.observed.begun)
        for member in run.inside
        if member.observed.begun is not None and member.observed.round == run.durable.round
    ]
    if not known:
        return None
    in_place, warm = sum(begun.in_place for _, begun in known), sum(begun.warm for _, begun in known)
    cold = sum(member.offer.workers for member in run.inside) - in_place - warm
    why_not = next((f"node {node}: {begun.why_not}" for node, begun in known if begun.why_not), "")
    return Begun(in_place, warm, max(cold, 0), clip(why_not, MESSAGE_MAX))


def begun_view(begun: Begun | None) -> BegunStatus | None:
    """Return the same for the HTTP API."""
    if begun is None:
        return None
    return BegunStatus(in_place=begun.in_place, warm=begun.warm, cold=begun.cold, why_not=begun.why_not)
