"""Decides when to ask the workers of a round at what times they arrived in collectives, and for how many arrivals.

The worker that regularly arrives last makes every step slow for all. `server/reads/arrival_reads.py` asks, and
`lateness` compares the answers.
"""

from __future__ import annotations

from coordinatord.core.rounds.state.run import Run
from coordinatord.core.watching.lateness_watch import is_training
from coordinatord.core.watching.run_watch import lateness_of, reports_no_steps
from coordinatord.core.watching.worker_sources import WORKERS_AT_ONCE_MAX
from coordinatord.protocol.arrival_messages import ARRIVALS_MAX
from coordinatord.protocol.messages import Launcher

ARRIVALS_AT_ONCE = 40_000
"""The limit of arrivals in one comparison. So many take some 20 ms, in which the coordinator does nothing else. The
more workers a round has, the fewer arrivals each is asked for."""

ARRIVALS_MIN = 20
"""The least number of arrivals to ask each worker for: a few more than `lateness.COLLECTIVES_MIN`, since only
collectives that all workers report are compared."""

EVERY_S = 30.0
"""The seconds between two comparisons. One costs a worker 0.1 s of one CPU, while its training goes on."""

FIRST_STEPS = 20
"""The first comparison of a round comes after so many steps, or after `EVERY_S` if that is earlier. It may be too
vague, since it covers the beginning of the training, and knows the offset of each clock by only one answer. So the next
ones follow soon until a laggard is found: by `ask_at` after 30, 45 and 67 steps. Three comparisons have to agree on a
laggard (`lateness_watch.AGREEING_MIN`)."""


def can_be_compared(run: Run) -> bool:
    """Whether a run trains, and has from two to `WORKERS_AT_ONCE_MAX` workers, which nodeclient has started."""
    begun = reports_no_steps(run) or run.progress.stepped_at is not None
    can_be_asked = run.spec.launcher is not Launcher.TORCHRUN and 1 < _workers(run) <= WORKERS_AT_ONCE_MAX
    return is_training(run) and begun and can_be_asked


def _workers(run: Run) -> int:
    return sum(own.workers for own in run.durable.order.values())


def ask_at(run: Run, trains_since: float, asked_at: float | None) -> float:
    """Return when to ask the workers of a round in training next; `asked_at` is when they were asked last, if ever.

    `trains_since` is when the round was first seen to train, which may be after its first step. Until a laggard is
    found, each pause is half as long as the training has lasted so far, up to `EVERY_S`. If workers enter no
    collective for longer than before, they are also asked at the time from which they count as at rest (`rests_at`). So
    a hang is noticed at once.
    """
    usual_s, lateness = run.progress.pace.usual_s, lateness_of(run)
    since = trains_since if run.progress.first_at is None else min(trains_since, run.progress.first_at)
    first_s = EVERY_S if usual_s is None else min(EVERY_S, FIRST_STEPS * usual_s)
    if asked_at is None:
        return since + first_s
    has_laggard = lateness is not None and lateness.laggard is not None
    usual_at = asked_at + (EVERY_S if has_laggard else min(EVERY_S, max(first_s, asked_at - since) / 2))
    rests_at = run.watching.rests_at
    return usual_at if rests_at is None or rests_at <= asked_at else min(usual_at, rests_at)


def most_arrivals(run: Run) -> int:
    """Return how many arrivals of each worker to ask for at most."""
    return min(max(ARRIVALS_MIN, ARRIVALS_AT_ONCE // _workers(run)), ARRIVALS_MAX)
