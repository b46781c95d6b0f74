"""When which workers are asked for their arrivals in collectives, and how the one that comes last is described."""

from __future__ import annotations

from msgspec import Struct

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Health, Run
from coordinatord.core.watching.hanging import reports_no_steps
from coordinatord.core.watching.lateness import Laggard, Lateness, RankLateness
from coordinatord.core.watching.lateness_watch import AGREEING
from coordinatord.core.watching.stack_groups import WORKERS_AT_ONCE_MAX
from coordinatord.protocol.arrival_messages import ARRIVALS_MAX, AskArrivals
from coordinatord.protocol.http.api import LaggardStatus, LateStatus
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
from one answer alone. Three looks are within 50 steps."""


class ArrivalSource(Struct, frozen=True):
    """Some workers of a node, which are asked together."""

    node: str
    session: int
    first_rank: int
    wanted: AskArrivals


def trains(run: Run) -> bool:
    """Whether a run trains, as far as is known, so that its workers arrive in collectives."""
    return run.durable.state is State.RUNNING and run.health is Health.WELL


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
    usual_s, known = run.progress.usual_s, run.lateness.known
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
        ArrivalSource(own.node, member.session, own.first_rank, AskArrivals(1, run.id, number, local_ranks, most))
        for own in run.durable.order.values()
        if (member := run.members.get(own.node)) is not None and member.session is not None
        for local_ranks in _pieces(own.workers)
    )


def _pieces(workers: int) -> list[tuple[int, ...]]:
    return [
        tuple(range(first, min(first + WORKERS_ASKED_MAX, workers))) for first in range(0, workers, WORKERS_ASKED_MAX)
    ]


def laggard_to_drain(run: Run) -> Laggard | None:
    """Return the laggard whose node is to be drained; None if there is none, or its node may not be drained.

    One node leaves at a time, and enough nodes stay for a round.
    """
    watch, factor = run.lateness, run.spec.drain_laggards
    if not factor or watch.known is None or watch.agreeing < AGREEING or watch.known.factor < factor:
        return None
    found = watch.known.laggard
    staying = [member for member in run.members.values() if not member.leaves and member.durable.outcome is None]
    if found is None or len(staying) < len(run.members) or found.node not in run.members:
        return None
    left = sum(member.durable.in_round or member.state is MemberState.READY for member in staying) - 1
    return found if left >= run.spec.nodes_min else None


def laggard_view(run: Run) -> LaggardStatus | None:
    """Return the worker that holds up the others; None if none does."""
    known = run.lateness.known if trains(run) else None
    laggard = None if known is None else known.laggard
    if known is None or laggard is None:
        return None
    return LaggardStatus(
        rank=laggard.rank,
        node=laggard.node,
        last=round(laggard.last, 3),
        late_s=round(laggard.late_s, 6),
        step_s=None if known.step_s is None else round(known.step_s, 6),
        sentence=sentence(known, laggard),
    )


def laggard_s(run: Run) -> float | None:
    """Return how late the laggard is; 0 if there is none, and None if that is not known."""
    known = run.lateness.known if trains(run) else None
    if known is None:
        return None
    return 0.0 if known.laggard is None else known.laggard.late_s


def sentence(known: Lateness, laggard: Laggard) -> str:
    """Describe how late a worker is, or all workers of a node."""
    late = (
        f"{_shown(laggard.late_s)} of a {_shown(known.step_s)} step" if known.step_s else f"by {_shown(laggard.late_s)}"
    )
    subject = f"node {laggard.node}" if laggard.rank is None else f"rank {laggard.rank} on node {laggard.node}"
    return f"{subject} is last in {100 * laggard.last:.0f} % of collectives, {late}"


def late_views(run: Run) -> dict[str, LateStatus]:
    """Return the latest worker of each node, by node; nothing while the job does not train."""
    known = run.lateness.known if trains(run) else None
    latest: dict[str, RankLateness] = {}
    for worker in () if known is None else known.ranks:
        if worker.node not in latest or worker.last > latest[worker.node].last:
            latest[worker.node] = worker
    return {
        node: LateStatus(rank=worker.rank, last=round(worker.last, 3), late_s=round(max(0.0, worker.late_s), 6))
        for node, worker in latest.items()
    }


def _shown(seconds: float) -> str:
    """Return a duration as text, in seconds or milliseconds."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
