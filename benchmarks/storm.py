"""Times a join storm: many nodes join one job within a second or two, while the nodes of another one beat.

The question is whether nodes that are in already are starved: how late their heartbeats are answered, and whether one
is lost.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import uvloop
from daemon import coordinatord
from fleet_process import Beats, fleet_process
from probe import probe
from tables import (
    Figures,
    Table,
    add_flags,
    allow_connections,
    errors_in_one_line,
    positive,
    runs_words,
    spread,
    write_report,
)

WITHIN_S = 300.0
"""A bound for each of the two joins, so that a benchmark of something broken ends."""

POLITENESS = 10
"""The niceness of the nodes that come, as of nice(1): they share the host with those already in, which is not what is
measured."""


@dataclass(frozen=True, slots=True)
class Span:
    """A time, and how those already in fared in it."""

    seconds: float
    beats: Beats
    health_median_ms: float
    health_worst_ms: float


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a coordinatord with one storm."""

    members: int
    nodes: int
    quiet: Span
    storm: Span
    joined_s: float
    """The time from the first connection until the last node had sent its `Join`."""
    ranked_s: float
    """The time from the first connection until the last node had its rank."""
    cpu_s: float
    lost: int


async def measure(members: int, nodes: int, within_s: float, quiet_s: float) -> Run:
    """Start a coordinatord, have members, and let the others come. Raises `BenchmarkError`."""
    async with (
        coordinatord() as daemon,
        fleet_process(members, daemon.url, "members", join_within_s=1.0) as inside,
        probe(daemon.url) as answers_s,
    ):
        async with asyncio.timeout(WITHIN_S):
            await inside.running()
            await daemon.ledger.started("members", 1)

        async def span_of(began_at: float) -> Span:
            seconds = asyncio.get_running_loop().time() - began_at
            health = [1_000 * answer for answer in answers_s]
            return Span(seconds, await inside.beats(), median(health), max(health))

        async def begin() -> float:
            await inside.beats()
            del answers_s[:]
            return asyncio.get_running_loop().time()

        began_at = await begin()
        await asyncio.sleep(quiet_s)
        quiet = await span_of(began_at)
        began_at, cpu_s = await begin(), daemon.cpu_s()
        storming = fleet_process(nodes, daemon.url, "storm", join_within_s=within_s, politeness=POLITENESS)
        async with storming as outside, asyncio.timeout(WITHIN_S):
            facts = await outside.running()
            await daemon.ledger.started("storm", 1)
            storm, cpu_s = await span_of(began_at), daemon.cpu_s() - cpu_s
            lost = daemon.ledger.lost()
    joined_s, ranked_s = (facts[which] - facts["began_at"] for which in ("joined_at", "ranked_at"))
    return Run(members, nodes, quiet, storm, joined_s, ranked_s, cpu_s, lost)


FIGURES: Figures = (
    ("heartbeats answered", "d", lambda span: span.beats.answers),
    ("  due while the last one was not answered yet", "d", lambda span: span.beats.overdue),
    ("answer to a heartbeat, median, ms", ".2f", lambda span: span.beats.median_ms),
    ("  one in a hundred is later than, ms", ".1f", lambda span: span.beats.late_ms),
    ("  the worst, ms", ".1f", lambda span: span.beats.worst_ms),
    ("answer to /healthz, median, ms", ".2f", lambda span: span.health_median_ms),
    ("  the worst, ms", ".1f", lambda span: span.health_worst_ms),
)

TOTALS: Figures = (
    ("nodes lost", "d", lambda run: run.lost),
    ("all have said who they are after, s", ".2f", lambda run: run.joined_s),
    ("all have their ranks after, s", ".2f", lambda run: run.ranked_s),
    ("processor time of the coordinator, ms per newcomer", ".3f", lambda run: 1_000 * run.cpu_s / run.nodes),
)


def table(runs: Sequence[Run], within_s: float) -> Table:
    """Return a table of the runs."""
    run = runs[0]
    title = f"{run.nodes:,} nodes come within {within_s:g} s to {run.members:,}, {runs_words(len(runs))}"
    shown = Table(title, "before", "meanwhile")
    shown.add_figures(FIGURES, [run.quiet for run in runs], [run.storm for run in runs])
    for label, spec, total in TOTALS:
        shown.add(label, "", spread([total(run) for run in runs], spec))
    return shown


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    parser = argparse.ArgumentParser(
        prog="storm", description="Time a join storm, and what it does to those already in."
    )
    parser.add_argument("--members", type=positive, default=1_000, help="nodes that are already in (default: 1000)")
    parser.add_argument("--nodes", type=positive, default=10_000, help="nodes that come (default: 10000)")
    parser.add_argument("--within", type=float, default=1.0, metavar="S", help="they come over this time (default: 1)")
    parser.add_argument("--quiet", type=float, default=3.0, metavar="S", help="before they come (default: 3)")
    add_flags(parser, repeat=1)
    options = parser.parse_args()
    runs: list[Run] = []
    with errors_in_one_line("storm"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        allow_connections(options.members + options.nodes)
        for _ in range(options.repeat):
            run = measure(options.members, options.nodes, options.within, options.quiet)
            runs.append(runner.run(run))
    print(table(runs, options.within))
    write_report(options.json, "storm", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
