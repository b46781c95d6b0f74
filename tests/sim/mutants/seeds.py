"""The seed that found each mutant last time: it is tried first, so that a run takes minutes and not hours.

A seed is a hint and no more. When the code changes, so do the histories, and another seed may be the one that finds a
mutant: the search goes on with the seeds that found other mutants, and then from 0 upward.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from tests.sim.mutants.mutant import ROOT

FILE = ROOT / "build" / "mutants.json"
"""Written by `python -m tests.sim.mutants --record`; it may be missing."""

OTHERS = 40
"""The number of seeds of other mutants that are tried, the most fruitful first."""


def recorded() -> dict[str, int]:
    """Return the seed of each mutant that was found, by name."""
    seeds: dict[str, int] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return seeds


def record(found: dict[str, int]) -> None:
    """Write the seeds that were found, beside those of other mutants."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(f"{json.dumps(recorded() | found, indent=2, sort_keys=True)}\n")


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
