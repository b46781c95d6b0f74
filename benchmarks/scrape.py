"""Times what a scrape of `GET /metrics` costs a coordinatord with many jobs and nodes, beside one that has none.

README.md beside this file explains the figures.
"""

import argparse
import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import uvloop
from aiohttp import ClientSession
from daemon import NO_HEARTBEAT_S, Daemon, coordinatord
from fleet import Fleet
from probe import probe
from tables import (
    BenchmarkError,
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

RUNNING_WITHIN_S = 300.0
"""A bound for the join, so that a benchmark of something broken ends."""

NODES_AT_ONCE = 500
"""The nodes of one job. Jobs come one after another, so that no round closes before the last node of its job is
there."""

PAUSE_S = 0.25
"""The pause between two scrapes, which come one by one in life as well."""


@dataclass(frozen=True, slots=True)
class Scrapes:
    """The costs of scrapes of one coordinatord."""

    series: int
    size_bytes: int
    cpu_s: float
    """The coordinatord's time for each."""
    seconds: list[float]
    """How long each took."""
    health_median_ms: float
    health_worst_ms: float


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a coordinatord."""

    jobs: int
    nodes: int
    empty: Scrapes
    """The scrapes before the first node came."""
    full: Scrapes


async def measure(jobs: int, nodes: int, scrapes: int) -> Run:
    """Scrape a coordinatord before and after jobs of so many nodes each have come. Raises `BenchmarkError`."""
    async with coordinatord(NO_HEARTBEAT_S) as daemon, asyncio.TaskGroup() as tasks:
        empty = await _scrape(daemon, scrapes)
        names = [f"job-{number:04}" for number in range(jobs)]
        fleets = [Fleet(nodes, daemon.url, name, tasks, beating=False) for name in names]
        async with asyncio.timeout(RUNNING_WITHIN_S):
            at_once = max(1, NODES_AT_ONCE // nodes)
            for first in range(0, jobs, at_once):
                coming = fleets[first : first + at_once]
                for fleet in coming:
                    fleet.join()
                for fleet in coming:
                    await fleet.ranked()
            for name in names:
                await daemon.ledger.started(name, 1)
        full = await _scrape(daemon, scrapes)
        for fleet in fleets:
            fleet.disband()
    return Run(jobs, jobs * nodes, empty, full)


async def _scrape(daemon: Daemon, count: int) -> Scrapes:
    seconds: list[float] = []
    text = b""
    async with ClientSession() as client, probe(daemon.url) as answers_s:
        await _get(client, daemon.url)  # the first one of a connection, and of a process, costs more
        health = array("d")
        idle_s = await _idle_cpu_s(daemon)
        cpu_s = daemon.cpu_s()
        for _ in range(count):
            del answers_s[:]
            began_at = time.monotonic()
            text = await _get(client, daemon.url)
            seconds.append(time.monotonic() - began_at)
            await asyncio.sleep(PAUSE_S)
            health.extend(answers_s)
        cpu_s = (daemon.cpu_s() - cpu_s) / count - idle_s
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    worst, middle = 1_000 * max(health), 1_000 * median(health)
    return Scrapes(series, len(text), max(0.0, cpu_s), seconds, middle, worst)


async def _idle_cpu_s(daemon: Daemon) -> float:
    """Return what the coordinatord uses in a pause without a scrape: it is asked for its health all the time."""
    before = daemon.cpu_s()
    await asyncio.sleep(2 * PAUSE_S)
    return (daemon.cpu_s() - before) / 2


async def _get(client: ClientSession, url: str) -> bytes:
    async with client.get(f"{url}/metrics") as answer:
        if answer.status != 200:  # noqa: PLR2004 - as HTTP has it
            raise BenchmarkError(f"/metrics answers with {answer.status}")
        return await answer.read()


FIGURES: Figures = (
    ("series", ",.0f", lambda scrapes: scrapes.series),
    ("size of the answer, KiB", ",.0f", lambda scrapes: scrapes.size_bytes / 1_024),
    ("time of a scrape, median, ms", ".1f", lambda scrapes: 1_000 * median(scrapes.seconds)),
    ("coordinator's processor time for one, ms", ".1f", lambda scrapes: 1_000 * scrapes.cpu_s),
    ("answer to /healthz meanwhile, median, ms", ".2f", lambda scrapes: scrapes.health_median_ms),
    ("  the worst, ms", ".1f", lambda scrapes: scrapes.health_worst_ms),
)


def table(runs: Sequence[Run]) -> Table:
    """Return a table of the runs."""
    first = runs[0]
    title = f"{first.jobs:,} jobs with {first.nodes:,} nodes, {runs_words(len(runs))}"
    shown = Table(title, "with them", "empty", "ratio")
    for label, spec, figure in FIGURES:
        full, empty = [figure(run.full) for run in runs], [figure(run.empty) for run in runs]
        ratios = [of_full / of_empty for of_full, of_empty in zip(full, empty, strict=True) if of_empty]
        shown.add(label, spread(full, spec), spread(empty, spec), spread(ratios, ".1f"))
    return shown


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    parser = argparse.ArgumentParser(prog="scrape", description="Time what a scrape of /metrics costs.")
    parser.add_argument("--jobs", type=positive, default=1_000, help="how many (default: 1000, all there may be)")
    parser.add_argument("--nodes", type=positive, default=10, help="of each job (default: 10)")
    parser.add_argument("--scrapes", type=positive, default=20, help="for each figure (default: 20)")
    add_flags(parser, repeat=1)
    options = parser.parse_args()
    runs: list[Run] = []
    with errors_in_one_line("scrape"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        allow_connections(options.jobs * options.nodes)
        for _ in range(options.repeat):
            run = runner.run(measure(options.jobs, options.nodes, options.scrapes))
            runs.append(run)
    print(table(runs))
    write_report(options.json, "scrape", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
