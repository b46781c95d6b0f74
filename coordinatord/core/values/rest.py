"""Whether the workers of a round are at rest: none has come to a collective for much longer than is usual.

Where workers report no steps, only this shows that a round may hang. The limits are those for steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from coordinatord.core.values.lateness import NodeArrivals
from coordinatord.core.values.training_progress import STALL_GAPS, STALL_S_MIN, STALL_STEPS
from coordinatord.protocol.arrival_messages import WorkerArrivals, unpack_ages


def are_at_rest(nodes: Sequence[NodeArrivals]) -> bool | None:
    """Return whether all workers are at rest; None if none reports a collective."""
    reported = [ages for node in nodes for worker in node.workers if (ages := _ages_of(worker))]
    latest = min(reported, key=lambda ages: ages[-1], default=None)
    return None if latest is None else latest[-1] >= _patience_s(latest)


def _ages_of(worker: WorkerArrivals) -> list[float]:
    """Return how long ago a worker came to each of its last collectives, of all groups, the first one first."""
    return sorted((age_s for group in worker.groups for age_s in unpack_ages(group.ages)), reverse=True)


def _patience_s(ages: Sequence[float]) -> float:
    """Return for how long workers may come to no collective, by the pauses between the last ones of one worker."""
    patience_s = STALL_S_MIN
    for before, after in pairwise(ages):
        pause_s = before - after
        patience_s = max(patience_s, pause_s * (STALL_GAPS if pause_s >= patience_s else STALL_STEPS))
    return patience_s
