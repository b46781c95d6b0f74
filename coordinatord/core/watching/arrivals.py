"""When which workers are asked for their arrivals in collectives."""

from __future__ import annotations

from msgspec import Struct

from coordinatord.core.rounds.state.run import Run
from coordinatord.core.watching.lateness_watch import trains
from coordinatord.core.watching.run_watch import lateness_of, reports_no_steps
from coordinatord.core.watching.stack_sources import WORKERS_AT_ONCE_MAX
from coordinatord.protocol.arrival_messages import ARRIVALS_MAX, AskArrivals
from coordinatord.protocol.messages import Launcher
from coordinatord.protocol.stack_messages import WORKERS_ASKED_MAX

ARRIVALS_AT_ONCE = 40_000
"""The most arrivals that are compared at once, which takes some 20 ms: with many workers, each is asked for fewer."""

ARRIVALS_MIN = 20
"""The fewest arrivals that each worker is asked for, a few more than `lateness.COLLECTIVES_MIN`."""

EVERY_S = 30.0
"""The time between two looks. One costs a worker a tenth of a second of one CPU, in which its training goes on."""

FIRST_STEPS = 20
"""The first look of a round comes after so many steps, if that is earlier. As long as no laggard is named, the others
follow soon: the first may be too vague, since it covers the beginning of the training, and has the offset of each clock
from only one answer. Three looks are within 50 steps."""


class ArrivalSource(Struct, frozen=True):
    """Some workers of a node, which are asked together."""

    node: str
    session: int
    first_rank: int
    wanted: AskArrivals


def can_be_compared(run: Run) -> bool:
    """Whether a run trains, with several workers that can be asked."""
    workers = sum(own.workers for own in run.durable.order.values())
    own_workers = run.spec.launcher is not Launcher.TORCHRUN
    begun = reports_no_steps(run) or run.progress.stepped_at is not None
    return trains(run) and own_workers and begun and 1 < workers <= WORKERS_AT_ONCE_MAX


def ask_at(run: Run, trains_since: float, asked_at: float | None) -> float:
    """Return when to ask the workers of a round that trains; `asked_at` is when they were asked last, or None.

    `trains_since` is when the round was first seen to train, which may be after its first step.
    """
    usual_s, known = run.progress.usual_s, lateness_of(run)
    since = trains_since if run.progress.first_at is None else min(trains_since, run.progress.first_at)
    first_s = EVERY_S if usual_s is None else min(EVERY_S, FIRST_STEPS * usual_s)
    if asked_at is None:
        return since + first_s
    if known is not None and known.laggard is not None:
        return asked_at + EVERY_S
    return asked_at + min(EVERY_S, max(first_s, asked_at - since) / 2)


def arrival_sources(run: Run) -> tuple[ArrivalSource, ...]:
    """Return the nodes to ask: all of the round that are connected."""
    number, workers = run.durable.round, sum(own.workers for own in run.durable.order.values())
    most = min(max(ARRIVALS_MIN, ARRIVALS_AT_ONCE // workers), ARRIVALS_MAX)
    return tuple(
        ArrivalSource(own.node, member.session.id, own.first_rank, AskArrivals(1, run.id, number, local_ranks, most))
        for own in run.durable.order.values()
        if (member := run.members.get(own.node)) is not None and member.session.id is not None
        for local_ranks in _pieces(own.workers)
    )


def _pieces(workers: int) -> list[tuple[int, ...]]:
    return [
        tuple(range(first, min(first + WORKERS_ASKED_MAX, workers))) for first in range(0, workers, WORKERS_ASKED_MAX)
    ]
