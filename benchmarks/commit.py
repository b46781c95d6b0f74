"""Times commits, which each decision waits for before anybody hears of it: in SQLite, and in etcd beside it.

README.md beside this file explains the figures.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import uvloop
from daemon import etcd_of
from tables import Table, add_flags, errors_in_one_line, positive, runs_words, sizes, spread, write_report

from coordinatord.store.database_store import Store
from coordinatord.store.sqlite_store import SqliteStore
from tests.support.etcd import EtcdNamespace
from tests.support.histories import a_join_of, a_loss_of, an_opening, made_at

SIDES = {0: "SQLite", 1: "etcd, 1 member", 3: "etcd, 3 members"}
"""What each side is called, by the number of members of etcd."""


@dataclass(frozen=True, slots=True)
class Run:
    """One store of a coordinatord."""

    side: str
    commit_median_ms: float
    commit_late_ms: float
    """One in a hundred took longer."""
    joins_ms: dict[int, float]
    """The time of one commit with so many joins."""


async def measure(members: int, commits: int, joins: Sequence[int]) -> Run:
    """Time commits of one record and of many, in an etcd of so many members. Raises `BenchmarkError`."""
    with tempfile.TemporaryDirectory() as folder:
        async with _store(members, Path(folder)) as store:
            await store.append(made_at(1.0, an_opening()))
            took = []
            for number in range(commits):
                record = a_loss_of("node") if number % 2 else a_join_of("node")
                begun = time.perf_counter()
                await store.append(made_at(2.0, record))
                took.append(time.perf_counter() - begun)
            took.sort()
            joins_ms = {}
            for size in joins:
                entries = made_at(3.0, *(a_join_of(f"node-{size}-{number}") for number in range(size)))
                begun = time.perf_counter()
                await store.append(entries)
                joins_ms[size] = 1_000 * (time.perf_counter() - begun)
    late = took[int(0.99 * len(took))]
    return Run(SIDES[members], 1_000 * median(took), 1_000 * late, joins_ms)


@asynccontextmanager
async def _store(members: int, folder: Path) -> AsyncIterator[Store]:
    with etcd_of(members, folder / "etcd") as cluster:
        if cluster is not None:
            async with EtcdNamespace(cluster).life() as store:
                yield store
            return
        store = SqliteStore.open(folder / "state")
        try:
            await store.load()
            yield store
        finally:
            await store.close()


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    parser = argparse.ArgumentParser(prog="commit", description="Time commits in SQLite, and in etcd beside it.")
    parser.add_argument("--commits", type=positive, default=200, help="of one record each (default: 200)")
    parser.add_argument("--joins", type=sizes, default=[1_000, 10_000], help="in one commit (default: 1000,10000)")
    add_flags(parser, repeat=3)
    options = parser.parse_args()
    runs: dict[str, list[Run]] = {side: [] for side in SIDES.values()}
    with errors_in_one_line("commit"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for _ in range(options.repeat):
            for members, side in SIDES.items():
                runs[side].append(runner.run(measure(members, options.commits, options.joins)))
    table = Table(runs_words(options.repeat), *runs)
    table.add("a commit of one record, median, ms", *(_cell(each, "commit_median_ms") for each in runs.values()))
    table.add("  one in a hundred takes longer than, ms", *(_cell(each, "commit_late_ms") for each in runs.values()))
    for size in options.joins:
        cells = [spread([run.joins_ms[size] for run in each], ".0f") for each in runs.values()]
        table.add(f"{size:,} joins in one commit, ms", *cells)
    print(table)
    write_report(options.json, "commit", [asdict(run) for each in runs.values() for run in each])


def _cell(runs: Sequence[Run], figure: str) -> str:
    return spread([getattr(run, figure) for run in runs], ".1f")


if __name__ == "__main__":
    main()
