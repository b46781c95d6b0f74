"""Train a small network on three nodes, break things on purpose, and measure how training goes on.

make demo

All programs run on this machine: one coordinatord, three nodeclients with one worker each, and the training script
`digits.py`. It trains twice. The first training is undisturbed: one nodeclient has all three workers. In the second one
a worker is killed, and a whole node, and that node is started again. Then all nodes are stopped by SIGTERM, and two of
them go on from the disk. No step may be done twice or left out, and the accuracies must be the same, within noise.

`local_cluster` starts, observes and ends the programs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from local_cluster import NODES, Cluster, ClusterError, Step, StoppedError, Training, running_cluster

EPOCHS = 40
EPOCHS_MIN = 30
"""The least epochs: a shorter training might be over before the node is back."""

ACCURACY_MIN = 0.95
ACCURACY_DIFFERENCE_MAX = 0.02
"""Sums are rounded differently at another world size, so a few of the 360 test images may get another label."""

LOG_LINES = 8
"""The lines of each program that are shown if something goes wrong."""

WIDTH_MAX = 110
"""The longest line in columns; longer lines are hard to read."""

WORLD_SIZES = [(3, 3), (3, 2), (2, 3), (3, 2)]
"""The expected world sizes before and after each disturbance."""

COLUMNS = ("what was done", "went on after", "next round", "new workers", "world size", "steps redone")
TITLE = "Three workers train on handwritten digits, twice: first undisturbed, then while things break on purpose.\n"
LEGEND = """
went on after: so long there was no new training step; it is the sum of
  next round:  the old workers were stopped, and ranks assigned anew
  new workers: they began with torch imported (--preload), connected, and took their state from memory
in the last row nodeclients were started again, which imported torch, and the state is from the disk (--persist)
"""


class Screen:
    """Prints events line by line; on a terminal, one more line always shows the current state."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._live = sys.stdout.isatty()
        self._moment = ""
        """The line about the current state."""

    def print(self, text: str) -> None:
        """Print lines that stay."""
        self.moment("")
        print(text, flush=True)

    def print_line(self, text: str) -> None:
        """Print what happens, with the time in seconds since the start."""
        stamp = f"{time.monotonic() - self._began:6.1f} s  "
        width = min(shutil.get_terminal_size((WIDTH_MAX, 24)).columns, WIDTH_MAX)
        blank = " " * len(stamp)
        wrapped = textwrap.fill(
            text, width, initial_indent=stamp, subsequent_indent=blank, break_long_words=False, break_on_hyphens=False
        )
        self.print(wrapped)

    def moment(self, text: str) -> None:
        """Replace the line about the current state; do nothing if this is no terminal or the line is the same."""
        if self._live and text != self._moment:
            self._moment = text
            columns = shutil.get_terminal_size().columns
            print("\r\x1b[K" + textwrap.indent(text, " " * 10)[: columns - 1], end="", flush=True)


class View:
    """Shows a training on the screen: each new round with the coordinator's reason, and the current step."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._round = 0

    def __call__(self, training: Training) -> None:
        """Show the changes."""
        if training.round > self._round:
            self._round = training.round
            why = re.sub(r"^all workers are started \((.*)\)$", r"\1", training.status["reason"])
            self._screen.print_line(f"round {self._round}, world size {training.status['world_size']}: {why}")
        self._screen.moment(self._moment(training))

    def _moment(self, training: Training) -> str:
        last = training.steps[-1] if training.steps else None
        if training.status.get("state") != "running":
            return str(training.status.get("reason", "nodes start"))
        if last is None or last.round < training.round:
            seconds = time.monotonic() - training.round_seen_s
            return f"round {training.round}: its workers connect, {seconds:.0f} s"
        done = round(20 * (last.epoch + 1) / training.epochs)
        bar = "#" * done + "." * (20 - done)
        return f"[{bar}] epoch {last.epoch + 1} of {training.epochs}, step {last.step}, world size {last.world_size}"


@dataclass(frozen=True)
class Recovery:
    """A disturbance of a training, and how the training went on; durations in seconds."""

    deed: str
    """The disturbance, in words."""
    next_round_s: float
    """The time from the last step before until the coordinator had formed the next round."""
    new_workers_s: float
    """The time from then until the first step that was not done before."""
    world_sizes: tuple[int, int]
    """The world size before and after."""
    steps_redone: int
    """How many steps were done a second time."""

    @property
    def pause_s(self) -> float:
        """Return how long training stood still."""
        return self.next_round_s + self.new_workers_s

    def row(self) -> tuple[str, ...]:
        """Return the columns of the table."""
        times = [f"{seconds:.1f} s" for seconds in (self.pause_s, self.next_round_s, self.new_workers_s)]
        return (self.deed, *times, "{} -> {}".format(*self.world_sizes), str(self.steps_redone))


def kill_worker(training: Training) -> str:
    """Kill the worker of rank 1."""
    node = training.node_of_rank(1)
    training.cluster.kill_worker(node)
    return f"worker on {node} killed"


def kill_node(training: Training) -> str:
    """Kill the node that all others need most: its worker has rank 0, the master of the process group."""
    node = training.node_of_rank(0)
    training.cluster.kill_node(node)
    return f"{node} (rank 0) killed"


def add_node(training: Training) -> str:
    """Start the node again that was killed."""
    [node] = set(NODES) - set(training.cluster.nodes)
    training.start_node(node)
    return f"{node} added back"


DEEDS = ((1, kill_worker), (2, kill_node), (3, add_node))
"""The disturbances, and after how many epochs each of them comes. Many epochs are left after the last one, since a node
needs a while to arrive."""


def disturb(training: Training, screen: Screen, epoch: int, deed: Callable[[Training], str]) -> Recovery:
    """Disturb a training after `epoch` epochs, and measure how it goes on."""
    steps = training.steps
    training.until(lambda: bool(steps) and steps[-1].epoch >= epoch)
    old_round = steps[-1].round
    description = deed(training)
    screen.print_line(f"==> {description}, at step {steps[-1].step}")
    training.until(lambda: steps[-1].round > old_round and steps[-1].step > training.last_step(old_round).step)
    return measure_recovery(screen, description, training.last_step(old_round), training)


def measure_recovery(screen: Screen, description: str, last: Step, training: Training) -> Recovery:
    """Print and return how a training went on after the `last` step before a disturbance."""
    after = [step for step in training.steps if step is not last and step.monotonic_s > last.monotonic_s]
    new = next(step for step in after if step.step > last.step)
    # A killed rank 0 may have finished a step without a line in the file: no step was redone then.
    recovery = Recovery(
        deed=description,
        next_round_s=training.round_seen_s - last.monotonic_s,
        new_workers_s=new.monotonic_s - training.round_seen_s,
        world_sizes=(last.world_size, new.world_size),
        steps_redone=max(0, last.step + 1 - after[0].step),
    )
    screen.print_line(f"training went on after {recovery.pause_s:.1f} s, with step {new.step}")
    return recovery


def stop_and_resume(stopped: Training, screen: Screen) -> tuple[Training, Recovery]:
    """End all nodes by SIGTERM, start two of them, and measure how a new run of the job resumes from the disk.

    Raises `ClusterError` if it does not resume, or leaves a step out.
    """
    last = stopped.steps[-1]
    screen.print_line(f"==> all nodes are stopped by SIGTERM, at step {last.step}")
    stopped.stop()
    last, two = stopped.steps[-1], NODES[:2]
    screen.print_line(f"no program of the job is left, and {' and '.join(two)} are started again")
    training = Training(stopped.cluster, stopped.job, stopped.epochs, View(screen), former=stopped)
    for node in two:
        training.start_node(node)
    training.until(lambda: bool(training.steps))
    if training.status["kept"]["resumed_from"] != "disk" or training.steps[0].step > last.step + 1:
        raise ClusterError(f"step {training.steps[0].step} follows step {last.step}: {training.status['reason']}")
    return training, measure_recovery(screen, f"all stopped, {len(two)} started again", last, training)


def play(cluster: Cluster, screen: Screen, epochs: int) -> None:
    """Train twice and print the results. Raises `ClusterError` if they are not as expected."""
    screen.print(TITLE)
    screen.print_line(f"coordinatord serves: watch the demo at {cluster.page()}")
    screen.print_line(f"logs are in {cluster.folder}, which is removed if all goes well")
    undisturbed = Training(cluster, "undisturbed", epochs, View(screen))
    screen.print_line(f"{NODES[0]} joins the job undisturbed, imports torch and trains for {epochs} epochs")
    undisturbed.start_alone(NODES[0], len(NODES))
    expected = undisturbed.finish()
    screen.print_line(f"done, accuracy {expected:.4f}")
    disturbed = Training(cluster, "disturbed", epochs, View(screen))
    screen.print_line(f"{', '.join(NODES)} join the job disturbed, to do the same")
    for node in NODES:
        disturbed.start_node(node)
    recoveries = [disturb(disturbed, screen, epoch, deed) for epoch, deed in DEEDS]
    resumed, recovery = stop_and_resume(disturbed, screen)
    recoveries.append(recovery)
    accuracy = resumed.finish()
    screen.print_line(f"done, accuracy {accuracy:.4f}")
    screen.print("\n" + table([COLUMNS, *(recovery.row() for recovery in recoveries)]))
    screen.print(f"{LEGEND}\naccuracy {accuracy:.4f}, undisturbed {expected:.4f}")
    rounds = (undisturbed.round, disturbed.round, resumed.round)
    wrong = {
        "there were more rounds than reasons for them": rounds != (1, 1 + len(DEEDS), 1),
        "steps were done again": any(recovery.steps_redone for recovery in recoveries),
        "the world sizes are not as expected": [recovery.world_sizes for recovery in recoveries] != WORLD_SIZES,
        f"an accuracy is not over {ACCURACY_MIN}": min(accuracy, expected) <= ACCURACY_MIN,
        f"the accuracies differ by over {ACCURACY_DIFFERENCE_MAX}": abs(accuracy - expected) > ACCURACY_DIFFERENCE_MAX,
    }
    if any(wrong.values()):
        raise ClusterError("; ".join(fault for fault, is_so in wrong.items() if is_so))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table with the first column aligned to the left, and all others, which have numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = ("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)
    return "\n".join([head, "-" * len(head), *body])


def last_lines(folder: Path) -> str:
    """Return the end of every log."""
    logs = sorted(folder.glob("*.log"), key=lambda log: log.stat().st_mtime)
    parts = [[f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-LOG_LINES:]] for log in logs]
    return "\n".join(line for part in parts for line in part)


def main() -> int:
    """Run the demo and return its exit code: 0 if all went as it should."""
    parser = argparse.ArgumentParser(description="Break an elastic training on purpose, and watch how it goes on.")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"at least {EPOCHS_MIN} (default: {EPOCHS})")
    epochs = parser.parse_args().epochs
    if epochs < EPOCHS_MIN:
        parser.error(f"--epochs {epochs}: at least {EPOCHS_MIN} are needed for all that is done in between")
    for package in ("nodeclient", "torch", "sklearn"):
        if importlib.util.find_spec(package) is None:
            parser.error(f"this Python ({sys.executable}) has no {package}: run `make demo`, which installs it")

    folder = Path(tempfile.mkdtemp(prefix="coordinatord-demo-"))
    screen = Screen()
    code = 0
    try:
        with running_cluster(folder) as cluster:
            play(cluster, screen, epochs)
        screen.print("OK")
    except StoppedError as stopped:
        screen.print(f"demo: stopped by {stopped.signal.name}, and all programs with it")
        code = 128 + stopped.signal
    except BrokenPipeError:
        # The reader is gone. Without this, Python would print an error when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (ClusterError, OSError) as error:
        screen.print(f"{last_lines(folder)}\n---\ndemo: {error}; above is the end of each log in {folder}")
        return 1
    shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
