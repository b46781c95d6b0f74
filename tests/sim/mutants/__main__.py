"""`python -m tests.sim.mutants`: plants known mistakes into the code, and lets the simulation find them.

Exits with 1 if it finds too few, or finds a mistake in the unchanged code.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.sim.mutants import seeds
from tests.sim.mutants.catalogue import MUTANTS
from tests.sim.mutants.hunt import Fate, hunt
from tests.sim.mutants.mutant import Mutant

SEEDS = 2_000
"""The number of seeds, somewhat more than CI plays of the unchanged code: a survivor would get past CI."""

SCORE_MIN = 0.95

UNCHANGED = "(unchanged)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description="Known mistakes, to be found.")
    parser.add_argument("--only", metavar="NAME", action="append", help="this mutant; may be given several times")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"to play at most against each ({SEEDS})")
    parser.add_argument("--first", type=int, default=0, help="the first after the likely ones (0)")
    parser.add_argument("--record", action="store_true", help="try the seeds that find them first next time")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one on each CPU")
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}; there are {', '.join(m.name for m in MUTANTS)}")
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    fates: list[Fate] = []
    try:
        for fate in hunt_all(chosen, options.first, options.seeds, options.processes):
            fates.append(fate)
            sys.stdout.write(f"{line(fate)}\n")
            sys.stdout.flush()
    finally:  # also where the user interrupts it
        if options.record:
            found = {fate.name: fate.seed for fate in fates if fate.name != UNCHANGED and fate.killed}
            seeds.record(found)
    sys.stdout.write(f"\n{summary(fates, chosen)}\n")
    return 0 if is_enough(fates) else 1


def hunt_all(mutants: Sequence[Mutant], first: int, most: int, processes: int) -> Iterator[Fate]:
    """Give each mutant a process of its own, and the unchanged code too; yield their fates as they are known."""
    known = seeds.recorded()
    # The mutants with the greatest seeds probably take longest. They begin first, so that none runs alone in the end.
    hardest = sorted(mutants, key=lambda mutant: known.get(mutant.name, sys.maxsize), reverse=True)
    # Each process imports our own modules anew, with the mistake. It is forked from one that has imported the
    # libraries.
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(["aiohttp", "msgspec", "prometheus_client"])
    with ProcessPoolExecutor(processes, mp_context=forkserver, max_tasks_per_child=1) as pool:
        jobs = [pool.submit(hunt, UNCHANGED, None, first, most)]
        jobs += [pool.submit(hunt, mutant.name, mutant, first, most) for mutant in hardest]
        for job in as_completed(jobs):
            yield job.result()


def line(fate: Fate) -> str:
    """Return a line about the fate of a mutant."""
    found = f"{fate.death}, seed {fate.seed}: {fate.finding}"
    how = "nothing was found" if fate.death is None else found
    return f"{fate.name:<34} {fate.seeds:>5} seeds {fate.cpu_s:>6.1f} s  {how}"


def summary(fates: Sequence[Fate], mutants: Sequence[Mutant]) -> str:
    """Return the result, and what each survivor breaks."""
    breaks = {mutant.name: f"{mutant.breaks} ({mutant.module}:{mutant.place})" for mutant in mutants}
    changed = [fate for fate in fates if fate.name != UNCHANGED]
    killed = [fate for fate in changed if fate.killed]
    lines = [f"survived: {fate.name}: {breaks[fate.name]}" for fate in changed if not fate.killed]
    lines += [f"BROKEN: the code as it is: {fate.finding}" for fate in fates if fate.name == UNCHANGED and fate.death]
    cpu_s = sum(fate.cpu_s for fate in fates)
    score = f"{len(killed)} of {len(changed)} mutants are found, {len(killed) / max(1, len(changed)):.0%}"
    lines.append(f"{score}; at least {SCORE_MIN:.0%} are wanted; {cpu_s:.0f} s of CPU")
    return "\n".join(lines)


def is_enough(fates: Sequence[Fate]) -> bool:
    """Whether enough mutants are found, and nothing in the unchanged code."""
    if any(fate.death for fate in fates if fate.name == UNCHANGED):
        return False
    changed = [fate for fate in fates if fate.name != UNCHANGED]
    return sum(fate.killed for fate in changed) >= SCORE_MIN * len(changed)


if __name__ == "__main__":
    sys.exit(main())
