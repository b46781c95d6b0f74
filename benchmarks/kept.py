"""What a broken round costs with kept state, beside torchrun and a checkpoint: seconds without a step, steps redone.

python -m benchmarks.kept --repeat 3

`kept_training` is what is trained: under nodeclient with `ctx.keep` ("kept"), the same without ("bare"), and under
torchrun with a `dcp.save` every 50 steps. The time counts from the last step before until the first step that had not
been done before, so it has in it what is done again. A bare training begins anew: there its first step counts, so that
what is more than that is what kept state costs. `kept_step` has what keeping costs while nothing breaks.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from recovery_jobs import Job, prepare, running_job
from recovery_parts import of_round
from tables import BenchmarkError, Table, add_flags, positive, runs_words, spread, write_report

SIDES = ("torchrun", "bare", "kept")

SCRIPT = Path(__file__).with_name("kept_training.py")

STEPS_BEFORE = 60
"""The steps before anything is done: more than lie between two checkpoints on the disk."""

PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario that was played once."""

    scenario: str
    side: str
    seconds: float
    redone: int
    """The steps that were done again."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is played."""

    words: str
    mode: str
    megabytes: int
    nnodes: str
    begin: int
    """The nodes that train before."""
    deed: Callable[[Job], None]
    world_size: int
    """The world size after it."""


def kill_worker(job: Job) -> None:
    """Kill the worker of the last rank."""
    job.kill_worker(job.node_of_rank(2))


def kill_node(job: Job) -> None:
    """Kill the node of the last rank, with its worker."""
    job.kill_node(job.node_of_rank(2))


def leave(job: Job) -> None:
    """Have the node of the last rank leave."""
    job.nodes[job.node_of_rank(2)].process.send_signal(signal.SIGTERM)


def add_node(job: Job) -> None:
    """Start a third node."""
    job.start("c")


SCENARIOS = {
    "ddp10": Scenario("worker killed, DDP, 10 MB", "keep", 10, "3", 3, kill_worker, 3),
    "ddp100": Scenario("worker killed, DDP, 100 MB", "keep", 100, "3", 3, kill_worker, 3),
    "node": Scenario("node killed, DDP, 10 MB", "keep", 10, "2:3", 3, kill_node, 2),
    "fewer": Scenario("node killed, FSDP2 + AdamW: its shards are lost", "sharded", 10, "2:3", 3, kill_node, 2),
    "leave": Scenario("node leaves, FSDP2 + AdamW, world 3 -> 2, 10 MB", "sharded", 10, "2:3", 3, leave, 2),
    "more": Scenario("world 2 -> 3, FSDP2 + AdamW, 10 MB", "sharded", 10, "2:3", 2, add_node, 3),
}


def play(name: str, side: str) -> Run:
    """Play a scenario once. Raises `BenchmarkError`."""
    scenario, launcher = SCENARIOS[name], "torchrun" if side == "torchrun" else "warm"
    with (
        tempfile.TemporaryDirectory(prefix="kept-") as folder,
        running_job(launcher, scenario.nnodes, Path(folder)) as job,
    ):
        mode = {"torchrun": "dcp", "bare": f"bare-{scenario.mode}"}.get(side, scenario.mode)
        job.training = (str(SCRIPT), mode, str(scenario.megabytes), folder)
        for node in "abc"[: scenario.begin]:
            job.start(node)
        before = job.await_steps(STEPS_BEFORE, scenario.begin)
        if not before:
            raise BenchmarkError(f"{name}, {side}: the nodes did not begin to train:\n{job.output()}")
        scenario.deed(job)

        def gone_on() -> bool:
            last = -1 if side == "bare" else max(mark.step for mark in of_round(job.marks, before))
            new = [mark for mark in job.marks if mark.round != before and mark.mark == "step" and mark.step > last]
            return len({mark.rank for mark in new if mark.world_size == scenario.world_size}) == scenario.world_size

        if not job.wait(gone_on, PATIENCE_S):
            raise BenchmarkError(f"{name}, {side}: it did not go on within {PATIENCE_S:g} s:\n{job.output()}")
        old = [mark for mark in of_round(job.marks, before) if mark.mark == "step"]
        last = max(mark.step for mark in old)
        new = [mark for mark in job.marks if mark.round != before and mark.mark == "step"]
        first_new_at = min(mark.at for mark in new if mark.step > last or side == "bare")
        redone = last + 1 - min(mark.step for mark in new)
        return Run(name, side, first_new_at - max(mark.at for mark in old), redone)


def main() -> None:
    """Run as the flags say."""
    parser = argparse.ArgumentParser(prog="kept", description="Break rounds whose state is kept, and time the pause.")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="only this one; may be repeated")
    parser.add_argument("--side", choices=SIDES, action="append", help="only with this; may be repeated")
    parser.add_argument("--seconds", type=positive, default=3600, help="begin nothing after so long (default: 3600)")
    add_flags(parser, repeat=3)
    options = parser.parse_args()
    prepare()
    runs = []
    until = time.monotonic() + options.seconds
    for _ in range(options.repeat):
        for name in options.only or SCENARIOS:
            sides = [side for side in options.side or SIDES if side != "torchrun" or SCENARIOS[name].mode == "keep"]
            runs += [play(name, side) for side in sides if time.monotonic() < until]
    load = f"load {os.getloadavg()[0]:.1f}"
    table = Table(f"seconds without a new step (steps redone); {runs_words(options.repeat)}, {load}", *SIDES)
    for name, scenario in SCENARIOS.items():
        cells = []
        for side in SIDES:
            of = [run for run in runs if (run.scenario, run.side) == (name, side)]
            redone = f" ({max(run.redone for run in of)} redone)" if of and side != "bare" else ""
            cells.append(f"{spread([run.seconds for run in of], '.2f')}{redone}")
        table.add(scenario.words, *cells)
    print(table)
    write_report(options.json, "kept", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
