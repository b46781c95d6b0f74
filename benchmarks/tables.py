"""What all benchmarks share: flags, medians with their range, the table, the JSON beside it. Nothing is measured here.

table = Table("3 nodes, 5 runs: median (least - most)", "cold", "warm")
table.add("time without a step, s", spread(cold, ".2f"), spread(warm, ".2f"))
print(table)
write_report(options.json, "recovery", [asdict(run) for run in runs])
"""

import argparse
import json
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

PACKAGES = ("coordinatord", "aiohttp", "uvloop", "msgspec", "torch")
"""Their versions are in every report: figures of different ones are not comparable."""

LABEL_WIDTH = 56
CELL_WIDTH = 28
"""The width in characters; a wider cell moves the rest of its row."""

FILES_BESIDE = 64
"""Open files that a process needs beside one connection for each node."""

Value = int | float

Figures = Sequence[tuple[str, str, Callable[[Any], float]]]
"""Rows of a table: for each its label, its format, and its figure of one run."""


class BenchmarkError(Exception):
    """Why there are no figures, in one line: something did not start, ended badly, or broke a promise."""


def spread(values: Sequence[Value], spec: str) -> str:
    """Return the median, and the least and the most where they differ: `0.31 (0.30 - 0.42)`."""
    if not values:
        return "-"
    middle = type(values[0])(median(values))
    text, least, most = (format(value, spec) for value in (middle, min(values), max(values)))
    return text if least == most else f"{text} ({least} - {most})"


def runs_words(count: int) -> str:
    """Return how many runs a table is made of, for its title."""
    return "1 run" if count == 1 else f"{count} runs: median (least - most)"


class Table:
    """Rows of a label and a cell for each column, as text."""

    def __init__(self, title: str, *columns: str) -> None:
        self._rows = [(title, *columns)]

    def add(self, label: str, *cells: str) -> None:
        """Add a row."""
        self._rows.append((f"  {label}", *cells))

    def add_figures(self, figures: Figures, *columns: Sequence[Any]) -> None:
        """Add a row for each figure, with its spread in each column of runs."""
        for label, spec, figure in figures:
            self.add(label, *(spread([figure(run) for run in runs], spec) for runs in columns))

    def __str__(self) -> str:
        return "\n".join(_row(*row) for row in self._rows)


def _row(label: str, *cells: str) -> str:
    first = f"{label:<{LABEL_WIDTH - 2}}  "
    return f"{first}{''.join(f'{cell:<{CELL_WIDTH - 2}}  ' for cell in cells)}".rstrip()


def write_report(path: Path | None, benchmark: str, runs: Sequence[Mapping[str, object]]) -> None:
    """Write every run, and its versions and flags, as JSON into `path`, if there is one."""
    if path is not None:
        report = {"benchmark": benchmark, **_made_with(), "runs": list(runs)}
        beside = path.with_name(f"{path.name}.part")
        beside.write_text(json.dumps(report, indent=2) + "\n")
        beside.replace(path)  # a benchmark that is killed leaves the report before, and no part of one


def _made_with() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": len(os.sched_getaffinity(0)),
        "versions": {package: _version(package) for package in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def add_flags(parser: argparse.ArgumentParser, repeat: int) -> None:
    """Add the flags that every benchmark has: `--repeat N` and `--json FILE`."""
    parser.add_argument("--repeat", type=positive, default=repeat, help=f"runs, for medians (default: {repeat})")
    add_json_flag(parser)


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--json FILE`."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run into this file as well")


def add_etcd_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag of benchmarks that run with another store as well."""
    words = "keep the state in an etcd of so many members on this host (default: SQLite)"
    parser.add_argument("--etcd", type=positive, default=0, metavar="MEMBERS", help=words)


def positive(text: str) -> int:
    """Parse a flag that is a whole number from 1 upward."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def sizes(text: str) -> list[int]:
    """Parse a flag that is such numbers, separated by commas."""
    return [positive(part) for part in text.split(",")]


def allow_connections(nodes: int) -> None:
    """Raise the limit of open files to what so many nodes need, here and for programs started later.

    Raises `BenchmarkError` if it cannot be raised.
    """
    needed = nodes + FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        why = f"{nodes} nodes need {needed} open files, but the hard limit is {hard}"
        raise BenchmarkError(f"{why}: raise it (ulimit -Hn), or ask for fewer")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def first_of(error: BaseException) -> BaseException:
    """Return the first exception in an exception group, at any depth: of nodes that fail together, one is enough."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def errors_in_one_line(program: str) -> Iterator[None]:
    """End the program with 1 after one line that says why there are no figures. Let an unexpected error pass."""
    try:
        yield
    except (BenchmarkError, TimeoutError, BaseExceptionGroup) as error:
        first = first_of(error)
        if not isinstance(first, BenchmarkError | TimeoutError):
            raise
        sys.exit(f"{program}: {str(first) or 'not done in time'}")
