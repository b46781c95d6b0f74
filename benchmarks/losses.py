"""Trains `examples/text.py` on nodes that change twenty times, and compares its losses with those of a single worker.

python -m benchmarks.losses --svg docs/losses.svg

README.md beside this file explains the figures.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import NamedTuple

from plot import WIDTH, Chart, Series, draw
from tables import BenchmarkError, Table, add_flags, errors_in_one_line, positive, runs_words, spread, write_report

from tests.support.cluster import QUICK, Cluster, Node, cluster_of_its_own
from tests.support.programs import BIN, Program, clean_environ, run, wait_until

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "text.py"

SIZES = (2, 1, 3, 2, 4, 3, 1, 4, 2, 3, 4, 1, 2, 4, 3, 2, 1, 3, 4, 2, 4)
"""How many nodes there are, of one worker each. Every other time that it falls, nodes are killed; else they leave."""

STEPS_OF_EACH = 10
"""The world stays as it is for so many steps at least, from the first one that it has done."""

PAUSE_S = "0.3"
"""The pause after each step: nodes come while others train, and rounding grows from step to step."""

WITHIN_S = 600.0
"""A bound for one change with its steps, and for as many of one worker: fifty times what they take on idle cores."""

ONE_THREAD = ("env", "OMP_NUM_THREADS=1")
"""Each node takes the machine for its own; several threads of each would wait for each other."""

APART_MOST = {"float32": 2e-3, "float64": 1e-6}
"""How far apart the losses of a step may be, as a part of the loss."""


class Note(NamedTuple):
    """What a worker has written of a step."""

    step: int
    loss: float
    workers: int


@dataclass(frozen=True, slots=True)
class Run:
    """The losses of both trainings, step by step, and how many workers the one on nodes that change had."""

    dtype: str
    changed: list[float]
    fixed: list[float]
    workers: list[int]
    killed: list[int]
    """The steps after which nodes were killed, give or take a few."""

    @property
    def apart(self) -> float:
        """The largest difference of a step, as a part of its loss."""
        return max(abs(a - b) / b for a, b in zip(self.changed, self.fixed, strict=True))


def notes(path: Path) -> list[Note]:
    """Read what workers have written so far."""
    text = path.read_text() if path.exists() else ""
    return [Note(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]


class World:
    """The nodes of a training, as many as there are to be."""

    def __init__(self, cluster: Cluster, command: tuple[str, ...], losses: Path) -> None:
        self.cluster = cluster
        self.killed: list[int] = []
        self._command = command
        self._losses = losses
        self._nodes: list[Node] = []
        self._falls = 0

    def become(self, size: int) -> None:
        """Let nodes come, or go, oldest first; return when the new world has done its steps."""
        done = max((note.step for note in notes(self._losses)), default=0)
        while len(self._nodes) < size:
            name = f"node-{len(self.cluster.nodes)}"
            flags = ("--nnodes", "1:4", "--max-restarts", "1000", "--preload", "torch,torch._dynamo")
            self._nodes.append(self.cluster.join(name, *flags, command=self._command, prefix=ONE_THREAD))
        if going := self._nodes[: len(self._nodes) - size]:
            self._falls += 1
            if self._falls % 2:
                self.killed.append(done)
            for node in going:
                node.process.send_signal(SIGKILL if self._falls % 2 else SIGTERM)
                self._nodes.remove(node)
        wait_until(f"{STEPS_OF_EACH} steps of {size} workers", lambda: self._has_done(size, done), WITHIN_S)

    def _has_done(self, size: int, after: int) -> bool:
        ended = [node for node in self._nodes if not node.reading]
        if ended:
            raise BenchmarkError(f"{ended[0].name} has ended:\n{ended[0].output}")
        steps = {note.step for note in notes(self._losses) if note.step > after and note.workers == size}
        return len(steps) >= STEPS_OF_EACH


def measure(dtype: str, changes: int, folder: Path) -> Run:
    """Train on nodes that change, then on one worker. Raises `BenchmarkError` if the losses are too far apart."""
    flags = ("--double",) if dtype == "float64" else ()
    command = (sys.executable, str(EXAMPLE), "--epochs", "1000", *flags, "--losses")
    changed, fixed = folder / "changed.jsonl", folder / "fixed.jsonl"
    with cluster_of_its_own("losses", *QUICK) as cluster:
        world = World(cluster, (*command, str(changed), "--pause", PAUSE_S), changed)
        for size in SIZES[: changes + 1]:
            world.become(size)
            print(f"  {size} nodes after step {notes(changed)[-1].step}", flush=True)
        run(BIN / "nodeclient", "stop", "losses", "--coord", cluster.coordinator.endpoint)
        for node in cluster.nodes:
            node.wait()
    last = {note.step: note for note in notes(changed)}
    join = (*ONE_THREAD, BIN / "nodeclient", "join", "--standalone", "--")
    with Program(*join, *command, fixed, "--steps", str(len(last)), environ=clean_environ()) as alone:
        wait_until("the training of one worker", lambda: not alone.reading, changes * WITHIN_S)
    beside = {note.step: note for note in notes(fixed)}
    if not list(range(1, len(last) + 1)) == sorted(last) == sorted(beside):
        raise BenchmarkError(f"steps are missing: {sorted(last)} beside {sorted(beside)}\n{alone.output}")
    steps = sorted(last)
    found = Run(
        dtype,
        changed=[last[step].loss for step in steps],
        fixed=[beside[step].loss for step in steps],
        workers=[last[step].workers for step in steps],
        killed=world.killed,
    )
    if found.apart > APART_MOST[dtype]:
        raise BenchmarkError(f"the losses are {found.apart:.1e} apart, as a part of them")
    return found


def picture(run: Run) -> str:
    """Return an SVG of the losses, and of the number of nodes below them."""
    steps = len(run.fixed)
    changes = [step for step in range(1, steps) if run.workers[step] != run.workers[step - 1]]
    ends, some = pairwise([0, *changes, steps]), range(0, steps, -(-steps // WIDTH))
    fixed, changed = ([(step, losses[step]) for step in some] for losses in (run.fixed, run.changed))
    nodes = [(step, run.workers[begin]) for begin, end in ends for step in (begin, end)]
    kills = [(step, run.workers[step - 1]) for step in run.killed]
    losses, sizes = ({str(row): row for row in range(int(most) + 1)} for most in (max(run.fixed), max(SIZES)))
    above = [Series("of one worker", fixed, "#f3b57a", 5), Series("of nodes that come and go", changed, width=1)]
    below = [
        Series(f"that come and go, at {len(changes)} changes", nodes),
        Series("that are killed", kills, "#c0392b", 0),
    ]
    columns = {"0": 0, f"{steps} steps": steps}
    return draw(Chart("the losses:", losses, columns, above), Chart("nodes:", sizes, columns, below, height=70))


def main() -> None:
    """Train, and print a table."""
    parser = argparse.ArgumentParser(prog="losses", description="Train on nodes that change, and on one worker.")
    parser.add_argument("--changes", type=positive, default=len(SIZES) - 1, help="of the world (default and most: 20)")
    parser.add_argument("--dtypes", nargs="+", choices=APART_MOST, default=list(APART_MOST), help="(default: both)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the losses of the last training")
    add_flags(parser, repeat=1)
    options = parser.parse_args()
    runs: list[Run] = []
    with errors_in_one_line("losses"):
        for dtype in options.dtypes * options.repeat:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    runs.append(measure(dtype, options.changes, Path(folder)))
                except AssertionError as error:  # a wait that took too long
                    raise BenchmarkError(*error.args) from error
    if options.svg:
        options.svg.write_text(picture(runs[-1]))
    shown = Table(runs_words(options.repeat), "steps", "kills", "losses apart, as a part")
    for dtype in dict.fromkeys(found.dtype for found in runs):
        own = [found for found in runs if found.dtype == dtype]
        steps, kills = [len(found.fixed) for found in own], [len(found.killed) for found in own]
        shown.add(dtype, spread(steps, "d"), spread(kills, "d"), spread([found.apart for found in own], ".1e"))
    print(shown)
    write_report(options.json, "losses", [asdict(found) | {"apart": found.apart} for found in runs])


if __name__ == "__main__":
    main()
