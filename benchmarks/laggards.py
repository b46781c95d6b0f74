"""Slows one rank of real trainings in its backward passes, and counts how often and how soon it is named.

python -m benchmarks.laggards --repeat 20

README.md beside this file explains the figures.
"""

import argparse
import random
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hangs import running_job, sizes_of
from laggards_training import BACKWARD_S
from tables import BenchmarkError, Table, add_flags, errors_in_one_line, spread, write_report

from tests.support.programs import wait_until

TRAINING = Path(__file__).with_name("laggards_training.py")

SEED = 1

NAMED_WITHIN_S = 120.0
"""A bound for one training, in which there are some four looks."""

STEPS_MOST = 50
"""A laggard is to be named within so many steps."""


@dataclass(frozen=True, slots=True)
class Laggard:
    """One training, and what was said of it."""

    layout: str
    slowed: int
    part: float
    """The part of a backward pass by which the rank takes longer."""
    sentence: str
    """Empty if nobody was named."""
    right: bool
    steps: int | None
    """The steps that were done when somebody was named."""
    late_s: float | None
    """How late the one that was named was said to be."""


def measure(number: int, layout: str, part: float) -> Laggard:
    """Let one rank be slower, and see who is named. Raises `BenchmarkError`."""
    nodes, workers = sizes_of(layout)
    slowed = random.Random(f"{SEED} {layout} {number}").randrange(nodes * workers)  # noqa: S311 - to be repeated

    def named() -> dict[str, Any] | None:
        job = cluster.coordinator.job(cluster.job)
        if job is not None and job["state"] not in {"forming", "starting", "running"}:
            raise BenchmarkError(f"the training has ended: {job['reason']}")
        return None if job is None or job["laggard"] is None else job

    view, words = None, (str(slowed), str(part))
    with running_job(layout, TRAINING, words) as cluster, suppress(AssertionError):  # nobody is named in time
        view = wait_until("a laggard", named, NAMED_WITHIN_S)
    if view is None:
        return Laggard(layout, slowed, part, "", right=False, steps=None, late_s=None)
    laggard, steps = view["laggard"], (view["progress"]["step"] or 0) + 1
    right = (laggard["rank"], laggard["node"]) == (slowed, f"n{slowed // workers}")
    return Laggard(layout, slowed, part, laggard["sentence"], right, steps, laggard["late_s"])


def table(laggards: list[Laggard]) -> Table:
    """Return the figures of all layouts."""
    part = laggards[0].part
    title = f"slower by {part:.0%} in backward: {1000 * part * BACKWARD_S:.0f} ms"
    shown = Table(title, f"right within {STEPS_MOST} steps", "right", "wrong", "nobody", "steps", "lateness, ms")
    for layout in dict.fromkeys(laggard.layout for laggard in laggards):
        own = [laggard for laggard in laggards if laggard.layout == layout]
        right = [laggard for laggard in own if laggard.right]
        soon = sum(laggard.steps is not None and laggard.steps <= STEPS_MOST for laggard in right)
        nobody = sum(not laggard.sentence for laggard in own)
        shown.add(
            layout,
            f"{soon} of {len(own)}",
            str(len(right)),
            str(len(own) - len(right) - nobody),
            str(nobody),
            spread([laggard.steps for laggard in right if laggard.steps is not None], "d"),
            spread([1000 * laggard.late_s for laggard in right if laggard.late_s is not None], ".1f"),
        )
    return shown


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="laggards", description="Slow one rank, and see who is named.")
    add_flags(parser, repeat=5)
    parser.add_argument("--layouts", default="3x1,2x2", help="nodes x workers on each (default: 3x1,2x2)")
    parser.add_argument("--part", type=float, default=0.1, help="of a backward pass, by which it is slower (0.1)")
    options = parser.parse_args()
    laggards: list[Laggard] = []
    with errors_in_one_line("laggards"):
        for layout in options.layouts.split(","):
            for number in range(options.repeat):
                found = measure(number, layout, options.part)
                laggards.append(found)
                judged = "right" if found.right else f"it is rank {found.slowed}"
                print(f"  {layout}, {judged}, {found.steps} steps: {found.sentence or 'nobody is named'}", flush=True)
        print(table(laggards), flush=True)
    write_report(options.json, "laggards", [asdict(laggard) for laggard in laggards])


if __name__ == "__main__":
    main()
