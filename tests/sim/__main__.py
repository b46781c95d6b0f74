"""`python -m tests.sim`: plays simulated histories for a given time, and prints the result.

If an invariant was broken, it prints the end of that history, with the command that repeats it, and exits with 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
from collections.abc import Sequence

from tests.sim.campaign import LARGE_NODES, Findings, explain, explore, play
from tests.sim.trace import Trace

SEEDS = 2**31
"""The number of seeds from which the first one of a campaign is drawn, so that each campaign plays others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Simulated clusters that go wrong.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to play (default: 60)")
    parser.add_argument("--first", type=int, help="the first seed to play; drawn at random by default")
    parser.add_argument("--seed", type=int, help="play the history of this seed alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print the whole history")
    parser.add_argument("--nodes", type=int, default=LARGE_NODES, help=f"of the large clusters ({LARGE_NODES})")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one on each CPU")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        Trace.is_loud = options.trace
        return _play_one(options.seed, options.nodes)
    first = random.randrange(SEEDS) if options.first is None else options.first  # noqa: S311 - no secret
    # Each process begins anew with `spawn`: the result of one seed cannot depend on those before it.
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        step = options.processes
        jobs = [(first + number, step, options.seconds, options.nodes) for number in range(step)]
        found = Findings()
        for part in pool.starmap(explore, jobs):
            found.add(part)
    sys.stdout.write(report(found, first))
    return 1 if found.failed else 0


def _play_one(seed: int, nodes: int) -> int:
    try:
        world = play(seed, nodes)
    except Exception as error:  # noqa: BLE001 - whatever breaks it is the answer
        sys.stdout.write(f"{explain(seed, error)}\n")
        return 1
    sys.stdout.write(f"seed {seed}: no invariant is broken in {world.queue.time:.0f} s; {world.situation}\n")
    return 0


def report(findings: Findings, first: int) -> str:
    """Return the result of a campaign in some lines."""
    hours, idle_hours, cpu_minutes = findings.seconds / 3600, findings.skipped_s / 3600, findings.cpu_s / 60
    kinds = ", ".join(f"{name} {number:,}" for name, number in sorted(findings.faults.items()))
    records = ", ".join(f"{name} {number:,}" for name, number in sorted(findings.records.items()))
    never = "".join(f"\n    {row}" for row in findings.rows_never_taken)
    lines = [
        *findings.failed.values(),
        "",
        f"seeds from {first}: {findings.seeds:,}, of which {len(findings.failed)} broke an invariant",
        f"simulated: {hours:,.1f} cluster-hours, {idle_hours:,.1f} of them idle",
        f"events: {findings.events:,}; steps of trainings: {findings.steps:,}",
        f"speed: {hours / max(cpu_minutes, 1e-9):,.0f} cluster-hours per CPU-minute",
        f"faults: {findings.faults.total():,}: {kinds}",
        f"records: {findings.records.total():,}: {records}",
        f"rounds charged: {findings.charged:,}, {findings.charged_unseen:,} of them for a node that ended unheard",
        f"rows of the two tables never taken: {len(findings.rows_never_taken)}{never}",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
