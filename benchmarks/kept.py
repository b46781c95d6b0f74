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
from itertools import pairwise
from pathlib import Path

from recovery_jobs import Job, prepare, running_job
from recovery_parts import of_round, steps
from tables import BenchmarkError, Table, add_flags, positive, runs_words, spread, write_report

SIDES = ("torchrun", "bare", "kept")

SCRIPT = Path(__file__).with_name("kept_training.py")

STEPS_BEFORE = 75
"""The steps before anything is done: one and a half times as many as lie between two checkpoints on the disk, so that
as many are lost with it as are on average."""

STEPS_AFTER = 40
"""The steps that are watched where no round ends: two seconds, in which whatever comes of it comes."""

PATIENCE_S = 120.0
"""A training that has not gone on by then has not."""


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario that was played once."""

    scenario: str
    side: str
    seconds: float | None
    """None: training did not go on."""
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
    same_round: bool = False
    """The round goes on, or ought to: what counts is the longest time without a step."""


def kill_worker(job: Job) -> None:
    """Kill the worker of the last rank."""
    job.kill_worker(job.node_of_rank(2))


def kill_node(job: Job) -> None:
    """Kill the node of the last rank, with its worker."""
    job.kill_node(job.node_of_rank(2))


def kill_copied_node(job: Job) -> None:
    """Kill the node of the last rank when what it alone has is on another one too."""
    job.await_copies()
    kill_node(job)


def leave(job: Job) -> None:
    """Have the node of the last rank leave, as `nodeclient drain` does, and a notice that its host is taken away."""
    job.nodes[job.node_of_rank(2)].process.send_signal(signal.SIGTERM)


def add_node(job: Job) -> None:
    """Start a third node."""
    job.start("c")


def kill_coordinator(job: Job) -> None:
    """Kill what the nodes meet at."""
    job.kill_coordinator()


SCENARIOS = {
    "ddp10": Scenario("worker killed, DDP, 10 MB", "keep", 10, "3", 3, kill_worker, 3),
    "ddp100": Scenario("worker killed, DDP, 100 MB", "keep", 100, "3", 3, kill_worker, 3),
    "node": Scenario("node killed, DDP, 10 MB", "keep", 10, "2:3", 3, kill_node, 2),
    "fewer": Scenario("node killed, FSDP2 + AdamW, 10 MB", "sharded", 10, "2:3", 3, kill_copied_node, 2),
    "leave": Scenario("node drained, FSDP2 + AdamW, 10 MB", "sharded", 10, "2:3", 3, leave, 2),
    "more": Scenario("node joins, FSDP2 + AdamW, 10 MB", "sharded", 10, "2:3", 2, add_node, 3),
    "coord": Scenario("coordinator killed, DDP, 10 MB", "keep", 10, "2:3", 3, kill_coordinator, 3, same_round=True),
    "all": Scenario("SIGTERM to all, started again, DDP, 10 MB", "keep", 10, "3", 3, Job.begin_anew, 3),
}


def play(name: str, side: str) -> Run:
    """Play a scenario once. Raises `BenchmarkError`."""
    scenario, launcher = SCENARIOS[name], "torchrun" if side == "torchrun" else "warm"
    with tempfile.TemporaryDirectory(prefix="kept-") as folder:
        flags = ("--topology", "{node}", "--persist", f"{folder}/disk") if side == "kept" else ()
        with running_job(launcher, scenario.nnodes, Path(folder), flags=flags) as job:
            mode = {"torchrun": f"dcp-{scenario.mode}", "bare": f"bare-{scenario.mode}"}.get(side, scenario.mode)
            job.training = (str(SCRIPT), mode, str(scenario.megabytes), folder)
            for node in "abc"[: scenario.begin]:
                job.start(node)
            before = job.await_steps(STEPS_BEFORE, scenario.begin)
            if not before:
                raise BenchmarkError(f"{name}, {side}: the nodes did not begin to train:\n{job.output()}")
            scenario.deed(job)
            follow = _watch_round if scenario.same_round and side != "torchrun" else _await_next_round
            return follow(job, before, name, side)


def _watch_round(job: Job, number: str, name: str, side: str) -> Run:
    """Watch a round that goes on. Raises `BenchmarkError` if it does not."""
    done = len(steps(of_round(job.marks, number)))
    if not job.await_steps(done + STEPS_AFTER, SCENARIOS[name].world_size, patience_s=PATIENCE_S):
        raise BenchmarkError(f"{name}, {side}: it did not go on within {PATIENCE_S:g} s:\n{job.output()}")
    moments = steps(of_round(job.marks, number))[done:]
    return Run(name, side, max(b - a for a, b in pairwise(moments)), 0)


def _await_next_round(job: Job, before: str, name: str, side: str) -> Run:
    """Wait until training goes on in another round. Raises `BenchmarkError` if it does not, but for torchrun."""
    size = SCENARIOS[name].world_size

    def gone_on() -> bool:
        last = -1 if side == "bare" else max(mark.step for mark in of_round(job.marks, before))
        new = [mark for mark in job.marks if mark.round != before and mark.mark == "step" and mark.step > last]
        return len({mark.rank for mark in new if mark.world_size == size}) == size

    if not job.wait(gone_on, PATIENCE_S):
        if side == "torchrun":
            return Run(name, side, None, 0)
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
            runs += [play(name, side) for side in options.side or SIDES if time.monotonic() < until]
    load = f"load {os.getloadavg()[0]:.1f}"
    table = Table(f"seconds without a new step (steps redone); {runs_words(options.repeat)}, {load}", *SIDES)
    for name, scenario in SCENARIOS.items():
        cells = []
        for side in SIDES:
            of = [run for run in runs if (run.scenario, run.side) == (name, side)]
            redone = f" ({max(run.redone for run in of)} redone)" if of and side != "bare" else ""
            took = [run.seconds for run in of if run.seconds is not None]
            never = f"not within {PATIENCE_S:g} s" if len(took) < len(of) else ""
            cells.append(never or f"{spread(took, '.2f')}{redone}")
        table.add(scenario.words, *cells)
    print(table)
    write_report(options.json, "kept", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
