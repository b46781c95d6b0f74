"""Times what a training script pays to report a step, beside a method that does nothing.

A real step takes so long that none of this would show beside it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

from tables import Table, add_flags, positive, runs_words, spread, write_report

from nodeclient.workers.step_slots import Slots
from workerlib import Context

if TYPE_CHECKING:
    import torch

    from workerlib import WorkerEnvironment

BATCH = 10_000
"""Calls that are timed together; the fastest batch counts, in which nothing else had the processor."""


class Idle:
    """What a call of a method costs by itself."""

    def step(self, number: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """Times of one call each, in nanoseconds."""

    step_ns: float
    nothing_ns: float
    clock_ns: float


def measure(calls: int) -> Run:
    """Time all of them, one after the other."""
    with closing(Slots(1, print)) as slots:
        os.environ.update(slots.begin("run", 1)[0])
        # A context reports steps without its other fields.
        ctx = Context(cast("WorkerEnvironment", None), cast("torch.device", None))
        return Run(
            step_ns=_fastest(ctx.step, calls),
            nothing_ns=_fastest(Idle().step, calls),
            clock_ns=_fastest(lambda _: time.monotonic_ns(), calls),
        )


def _fastest(call: Callable[[int], object], calls: int) -> float:
    return min(_batch(call, range(begin, begin + BATCH)) for begin in range(0, calls, BATCH))


def _batch(call: Callable[[int], object], numbers: Iterable[int]) -> float:
    began_at = time.perf_counter_ns()
    for number in numbers:
        call(number)
    return (time.perf_counter_ns() - began_at) / BATCH


FIGURES: tuple[tuple[str, Callable[[Run], float]], ...] = (
    ("ctx.step(n), ns", lambda run: run.step_ns),
    ("time.monotonic_ns(), ns", lambda run: run.clock_ns),
)


def table(runs: Sequence[Run]) -> Table:
    """Return a table of the runs."""
    shown = Table(runs_words(len(runs)), "a call", "as empty methods")
    for label, figure in FIGURES:
        ratios = [figure(run) / run.nothing_ns for run in runs]
        shown.add(label, spread([figure(run) for run in runs], ".0f"), spread(ratios, ".1f"))
    return shown


def main() -> None:
    """Run as the flags say."""
    parser = argparse.ArgumentParser(prog="step", description="Time what it costs to say that a step is done.")
    parser.add_argument("--calls", type=positive, default=1_000_000, help="of each (default: 1000000)")
    add_flags(parser, repeat=5)
    options = parser.parse_args()
    runs = [measure(options.calls) for _ in range(options.repeat)]
    print(table(runs))
    write_report(options.json, "step", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
