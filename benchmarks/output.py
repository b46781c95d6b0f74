"""Times what workers' output costs on its way through a node, next to plain `cat`.

Each worker is a `cat` of one file of lines, and the output is counted, so a lost byte ends the benchmark. Figures of
one machine are compared as ratios only.
"""

import argparse
import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tables import (
    BenchmarkError,
    Table,
    add_flags,
    errors_in_one_line,
    positive,
    runs_words,
    sizes,
    spread,
    write_report,
)

from nodeclient.output.log_paths import LogPaths
from nodeclient.output.output import Output
from nodeclient.output.output_settings import OutputSettings
from nodeclient.workers.local_workers import LocalWorkers
from nodeclient.workers.spawn import WorkerCommand

LINE = b"step 000000 loss 0.123456 and some more words that a training script likes to print on each of its ranks...\n"
"""A line of 108 bytes; most lines of a log are near 100."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One way that output took."""

    way: str
    workers: int
    lines: int
    elapsed_s: float
    cpu_s: float
    """The node's processor time; 0 if there is no node, or it is not known."""

    @property
    def lines_per_s(self) -> float:
        """Lines that arrived in a second."""
        return self.lines / self.elapsed_s


class Counter:
    """A reader that counts ends of lines, and keeps nothing."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.lines = 0
        self._thread = threading.Thread(target=self._count)
        self._thread.start()

    def finish(self) -> int:
        """Wait for the end; return the number of lines."""
        os.close(self.writing)
        self._thread.join()
        os.close(self.reading)
        return self.lines

    def _count(self) -> None:
        while chunk := os.read(self.reading, 1 << 16):
            self.lines += chunk.count(b"\n")


def bare(file: Path, workers: int, lines: int) -> Figure:
    """Let the workers write into the pipe themselves."""
    counter, began_at = Counter(), time.monotonic()
    processes = [subprocess.Popen(["cat", file], stdout=counter.writing) for _ in range(workers)]  # noqa: S603, S607 - any cat
    for process in processes:
        process.wait()
    return _figure("bare: each `cat` writes by itself", counter, workers, lines, began_at, 0.0)


def through_node(way: str, file: Path, workers: int, lines: int, settings: OutputSettings) -> Figure:
    """Let the workers write through a node's output, in a process of its own, which measures its processor time."""
    counter, began_at = Counter(), time.monotonic()
    figures_reading, figures_writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(figures_writing, str(asyncio.run(_pass_on(file, workers, settings, counter.writing))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    figure = _figure(way, counter, workers, lines, began_at, float(os.read(figures_reading, 100)))
    os.close(figures_reading)
    os.close(figures_writing)
    return figure


async def _pass_on(file: Path, workers: int, settings: OutputSettings, fd: int) -> float:
    cpu_s = time.process_time()
    exits: asyncio.Queue[int] = asyncio.Queue()
    group = LocalWorkers(secrets.token_hex(16), lambda _, code: exits.put_nowait(code), lambda _: asyncio.sleep(0))
    output = Output(settings, "host", "role", sys.exit, (fd, fd))
    with output.begin(LogPaths("job", "run", 1), range(workers), several_hosts=False) as streams:
        group.start([WorkerCommand(("cat", str(file)), os.environ)] * workers, streams)
    for _ in range(workers):
        await exits.get()
    await group.sweep()
    await output.close()
    return time.process_time() - cpu_s


def _figure(way: str, counter: Counter, workers: int, lines: int, began_at: float, cpu_s: float) -> Figure:
    arrived = counter.finish()
    if arrived != workers * lines:
        raise BenchmarkError(f"{way}: of {workers * lines} lines {arrived} arrived")
    return Figure(way, workers, arrived, time.monotonic() - began_at, cpu_s)


def measure(workers: int, lines: int, repeat: int) -> list[list[Figure]]:
    """Time each way so many times, the bare one first. Raises `BenchmarkError`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "lines")
        with file.open("wb") as written:
            written.writelines(LINE for _ in range(lines))
        kept = OutputSettings(log_dir=Path(folder, "logs"))
        name = "raw" if workers == 1 else "prefixed"
        ways: list[Callable[[], Figure]] = [
            lambda: bare(file, workers, lines),
            lambda: through_node(f"node, {name}", file, workers, lines, OutputSettings()),
            lambda: through_node(f"node, {name}, and into log files", file, workers, lines, kept),
        ]
        rounds = [[way() for way in ways] for _ in range(repeat)]
    return [list(of_one_way) for of_one_way in zip(*rounds, strict=True)]


def table(ways: Sequence[Sequence[Figure]]) -> Table:
    """Return a table of the ways next to that of the bare workers."""
    bare_ones = ways[0]
    title = f"{bare_ones[0].workers} workers, {bare_ones[0].lines:,} lines in all, {runs_words(len(bare_ones))}"
    shown = Table(title, "lines/s", "ratio to bare", "µs of processor time a line")
    for figures in ways:
        ratios = [
            figure.lines_per_s / bare_figure.lines_per_s for figure, bare_figure in zip(figures, bare_ones, strict=True)
        ]
        cpu_us = [1e6 * figure.cpu_s / figure.lines for figure in figures if figure.cpu_s]
        lines_per_s = [figure.lines_per_s for figure in figures]
        shown.add(figures[0].way, spread(lines_per_s, ",.0f"), spread(ratios, ".3f"), spread(cpu_us, ".2f"))
    return shown


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    parser = argparse.ArgumentParser(prog="output", description="Time what workers' output costs in a node.")
    parser.add_argument("--workers", type=sizes, default=[1, 8], help="how many, separated by commas (default: 1,8)")
    parser.add_argument("--lines", type=positive, default=1_000_000, help="of each worker (default: 1000000)")
    add_flags(parser, repeat=3)
    options = parser.parse_args()
    report = []
    with errors_in_one_line("output"):
        for workers in options.workers:
            ways = measure(workers, options.lines, options.repeat)
            print(table(ways), flush=True)
            report += [asdict(figure) for figures in ways for figure in figures]
    write_report(options.json, "output", report)


if __name__ == "__main__":
    main()
