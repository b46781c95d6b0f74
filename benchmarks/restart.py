"""Times the start of a coordinatord on a live job and many jobs that are over, beside one with nothing to read.

README.md beside this file explains the figures.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from daemon import COORDINATORD, server
from msgspec.structs import replace
from tables import BenchmarkError, Table, add_flags, errors_in_one_line, positive, runs_words, spread, write_report

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.values.records import JobForgotten, Record
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE
from coordinatord.store.interface import Entry
from tests.support.script import Stage

Past = Sequence[tuple[float, Record]]

LIVE = "live"

WRITTEN_AT_ONCE = 50
"""Runs of a commit, so that making the state does not wait for the disk a thousand times."""

BEGAN_AT = 1.75e9
"""When the first record was made, in seconds since 1970; the live job came a few days later."""

BARE = """
import sqlite3, sys
import coordinatord.commands.serve
rows = sqlite3.connect(sys.argv[1]).execute(
    "SELECT * FROM records WHERE job = ? UNION ALL SELECT * FROM records WHERE kind IN ('RunOpened', 'RunEnded')",
    (sys.argv[2],),
).fetchall()
"""
"""The least that a start can cost: to import the program, and to have the rows that it needs, undecoded."""


@dataclass(frozen=True, slots=True)
class Start:
    """The start of one process."""

    seconds: float
    """How long it took until it listened, or ended."""
    cpu_s: float
    resident_kib: int


@dataclass(frozen=True, slots=True)
class Run:
    """One start of each."""

    nodes: int
    over: int
    over_nodes: int
    rounds: int
    records: int
    """All that the database has."""
    restored: Start
    empty: Start
    bare: Start


def history(nodes: int, rounds: int, *, over: bool) -> Past:
    """Return the records of a run: a worker fails in each round but the last, in which all nodes run or succeed."""
    stage = Stage(retry_pause_s=0.0)
    names = " ".join(f"n{number}" for number in range(1, nodes + 1))
    for name in names.split():
        stage.play(f"join {name} min={nodes} max={nodes} workers=8 restarts={rounds}")
    stage.play(f"running {names}")
    for _ in range(rounds - 1):
        stage.play("advance 1s")
        stage.play("fail n1")
        stage.play(f"stopped {names}")
        stage.play(f"running {names}")
    if over:
        stage.play(f"succeed {names}")
    return stage.past


def fill(state: Path, nodes: int, over: int, over_nodes: int, rounds: int) -> int:
    """Make a state directory as a coordinatord leaves it; return how many records it has."""
    ended, live = history(over_nodes, rounds, over=True), history(nodes, 1, over=False)
    state.mkdir(mode=0o700)
    database = Database.open(state / DATABASE)
    for first in range(0, over, WRITTEN_AT_ONCE):
        runs = range(first, min(first + WRITTEN_AT_ONCE, over))
        database.append(entry for number in runs for entry in _past_run(ended, number))
    database.append(Entry(BEGAN_AT + 4e5 + at, replace(record, job=LIVE, run="b-1")) for at, record in live)
    records = database.count()
    database.close()
    return records


def _past_run(past: Past, number: int) -> Iterator[Entry]:
    """Yield the records of one run that is over; before it the oldest is forgotten, if there are too many jobs."""
    began_at = BEGAN_AT + number
    oldest = number - (Policy().jobs_max - 1)
    if oldest >= 0:
        yield Entry(began_at, JobForgotten(f"job-{oldest}", f"a-{oldest}", "another job needed its place"))
    for at, record in past:
        yield Entry(began_at + at, replace(record, job=f"job-{number}", run=f"a-{number}"))


async def start(state: Path, jobs: int) -> Start:
    """Start a coordinatord on a state directory. Raises `BenchmarkError`, also if it knows another number of jobs."""
    began_at = time.monotonic()
    async with server((*COORDINATORD, "--insecure", "--state-dir", str(state))) as served:
        found = Start(time.monotonic() - began_at, served.cpu_s(), served.resident_kib())
        with urllib.request.urlopen(f"{served.url}/healthz") as answer:  # noqa: S310, ASYNC210 - http, nothing else runs
            known = json.load(answer)["jobs"]
    if known != jobs:
        raise BenchmarkError(f"it knows {known} jobs, and should know {jobs}")
    return found


def bare(state: Path) -> Start:
    """Do the least that a start can cost. Raises `BenchmarkError`."""
    began_at = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", BARE, str(state / DATABASE), LIVE])  # noqa: S603 - ours
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchmarkError(f"the bare read ended with {process.returncode}")
    return Start(time.monotonic() - began_at, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def table(runs: Sequence[Run]) -> Table:
    """Return a table of the runs."""
    first = runs[0]
    over = f"{first.over:,} jobs of {first.over_nodes} nodes and {first.rounds} rounds that are over"
    shown = Table(f"{first.nodes:,} nodes, {over}, {runs_words(len(runs))}", "with them", "empty", "bare read")
    columns = [[getattr(run, name) for run in runs] for name in ("restored", "empty", "bare")]
    shown.add("until it listens, s", *(spread([timed.seconds for timed in each], ".2f") for each in columns))
    shown.add("processor time, s", *(spread([timed.cpu_s for timed in each], ".2f") for each in columns))
    shown.add("  of it beyond a bare read", spread([run.restored.cpu_s - run.bare.cpu_s for run in runs], ".2f"))
    shown.add("memory, MiB", *(spread([timed.resident_kib / 1_024 for timed in each], ".0f") for each in columns))
    return shown


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    parser = argparse.ArgumentParser(prog="restart", description="Time the start of a coordinatord.")
    parser.add_argument("--nodes", type=positive, default=10_000, help="of the live job (default: 10000)")
    parser.add_argument("--over", type=positive, default=1_000, help="jobs that are over (default: 1000)")
    parser.add_argument("--over-nodes", type=positive, default=128, help="of each of them (default: 128)")
    parser.add_argument("--rounds", type=positive, default=5, help="of each of them (default: 5)")
    add_flags(parser, repeat=5)
    options = parser.parse_args()
    size = options.nodes, options.over, options.over_nodes, options.rounds
    jobs = min(options.over + 1, Policy().jobs_max)
    runs: list[Run] = []
    with errors_in_one_line("restart"), tempfile.TemporaryDirectory() as folder:
        state, nothing = Path(folder, "state"), Path(folder, "empty")
        records = fill(state, *size)
        for _ in range(options.repeat):
            restored, empty = asyncio.run(start(state, jobs)), asyncio.run(start(nothing, 0))
            runs.append(Run(*size, records, restored, empty, bare(state)))
    print(table(runs))
    write_report(options.json, "restart", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
