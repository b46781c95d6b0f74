"""Times what a coordinatord costs while N nodes have their ranks and only send heartbeats.

README.md beside this file explains the figures.
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
    BenchmarkError,
    Figures,
    Table,
    add_etcd_flag,
    add_flags,
    allow_connections,
    errors_in_one_line,
    runs_words,
    sizes,
    write_report,
)

RUNNING_WITHIN_S = 300.0
"""A bound for the join, so that a benchmark of something broken ends."""

JOIN_WITHIN_S = 1.0
JOIN_RATE_MOST = 2_000.0
"""The rate at which nodes come, over a second at least, so that their heartbeats do not all fall together."""


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a coordinatord with so many idle nodes."""

    nodes: int
    seconds: float
    cpu_s: float
    resident_kib: int
    """The memory of the whole process."""
    resident_before_kib: int
    """The same, before the first node came."""
    beats: Beats
    health_median_ms: float
    health_worst_ms: float


async def measure(size: int, seconds: float, members: int = 0) -> Run:
    """Start a coordinatord and nodes, and measure for so many seconds. Raises `BenchmarkError`.

    `members` is as of `coordinatord`.
    """
    async with coordinatord(members=members) as daemon:
        before_kib = daemon.resident_kib()
        async with fleet_process(
            size, daemon.url, "idle", join_within_s=max(JOIN_WITHIN_S, size / JOIN_RATE_MOST)
        ) as fleet:
            async with asyncio.timeout(RUNNING_WITHIN_S):
                await fleet.running()
                await daemon.ledger.started("idle", 1)
            await fleet.beats()
            cpu_s = daemon.cpu_s()
            async with probe(daemon.url) as answers_s:
                await asyncio.sleep(seconds)
            cpu_s = daemon.cpu_s() - cpu_s
            beats = await fleet.beats()
            lost = daemon.ledger.lost()
            resident_kib = daemon.resident_kib()
    if lost:
        raise BenchmarkError(f"{lost} times a node was lost")
    health = [1_000 * answer for answer in answers_s]
    return Run(size, seconds, cpu_s, resident_kib, before_kib, beats, median(health), max(health))


FIGURES: Figures = (
    ("coordinator's processor time, % of a core", ".1f", lambda run: 100 * run.cpu_s / run.seconds),
    ("heartbeats a second", ".0f", lambda run: run.beats.answers / run.seconds),
    ("processor time of a heartbeat, µs", ".1f", lambda run: 1e6 * run.cpu_s / run.beats.answers),
    ("bytes a second to the coordinator", ",.0f", lambda run: run.beats.bytes_to_coordinator / run.seconds),
    ("bytes a second from the coordinator", ",.0f", lambda run: run.beats.bytes_from_coordinator / run.seconds),
    ("memory of the coordinator, MiB", ".1f", lambda run: run.resident_kib / 1_024),
    ("  of it for each node, KiB", ".1f", lambda run: (run.resident_kib - run.resident_before_kib) / run.nodes),
    ("answer to a heartbeat, median, ms", ".2f", lambda run: run.beats.median_ms),
    ("  one in a hundred is later than, ms", ".2f", lambda run: run.beats.late_ms),
    ("  the worst, ms", ".1f", lambda run: run.beats.worst_ms),
    ("answer to /healthz, median, ms", ".2f", lambda run: run.health_median_ms),
    ("  the worst, ms", ".1f", lambda run: run.health_worst_ms),
)


def table(runs: Sequence[Run]) -> Table:
    """Return a table of the runs with one number of nodes."""
    shown = Table(f"{runs[0].nodes:,} idle nodes, {runs[0].seconds:g} s, {runs_words(len(runs))}", "")
    shown.add_figures(FIGURES, runs)
    return shown


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    parser = argparse.ArgumentParser(prog="idle", description="Time what nodes cost that do nothing but beat.")
    parser.add_argument("--nodes", type=sizes, default=[1_000], help="how many, separated by commas (default: 1000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="to watch them (default: 60)")
    add_flags(parser, repeat=1)
    add_etcd_flag(parser)
    options = parser.parse_args()
    report = []
    with errors_in_one_line("idle"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        allow_connections(max(options.nodes))
        for size in options.nodes:
            runs = [runner.run(measure(size, options.seconds, options.etcd)) for _ in range(options.repeat)]
            print(table(runs), flush=True)
            report += [asdict(run) for run in runs]
    write_report(options.json, "idle", report)


if __name__ == "__main__":
    main()
