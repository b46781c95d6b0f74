"""The seed that found each mutant last time: it is tried first, so that a run takes minutes and not hours.

A seed is a hint and no more. When the code changes, so do the histories, and another seed may be the one that finds a
mutant: the search goes on with the seeds that found other mutants, and then from 0 upward.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).with_name("seeds.json")
"""Written by `python -m tests.sim.mutants --record`."""

OTHERS = 40
"""The number of seeds of other mutants that are tried, the most fruitful first."""


def recorded() -> dict[str, int]:
    """Return the seed of each mutant, by name."""
    seeds: dict[str, int] = json.loads(FILE.read_text())
    return seeds


def record(found: dict[str, int], names: set[str]) -> None:
    """Write the seeds that were found, and the known ones of other mutants whose names still exist."""
    seeds = {name: seed for name, seed in (recorded() | found).items() if name in names}
    FILE.write_text(f"{json.dumps(dict(sorted(seeds.items())), indent=2)}\n")


def in_order(name: str, first: int) -> Iterator[int]:
    """Yield the seeds to play against a mutant, each once: its own, those of others, all from `first` upward."""
    known = recorded()
    likely = [known[name]] if name in known else []
    likely += [seed for seed, _ in Counter(known.values()).most_common(OTHERS) if seed not in likely]
    yield from likely
    seed = first
    while True:
        if seed not in likely:
            yield seed
        seed += 1
