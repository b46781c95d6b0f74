"""What a broken round costs with kept state, beside torchrun and a checkpoint: seconds without a step, steps redone.

python -m benchmarks.kept --repeat 3

`kept_training` is what is trained: under nodeclient with `ctx.keep` ("kept"), the same without ("bare"), and under
torchrun with a `dcp.save` every 50 steps. "in-place" is the same under nodeclient with workers that outlive a round; it
has no sharded training, whose parameters are bound to their round. The time counts from the last step before until the
first step that had not been done before, so it has in it what is done again. A bare training begins anew: there its
first step counts, so that what is more than that is what kept state costs. `kept_step` has what keeping costs while
nothing breaks.
"""

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path

from recovery_jobs import IN_PLACE, Job, NodeclientJob, TorchrunJob, prepare, running_job
from recovery_parts import of_round, steps
from tables import BenchmarkError, Table, add_flags, positive, runs_words, spread, write_report

SIDES = ("torchrun", "bare", "kept", IN_PLACE)

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
    copied: bool = False
    """Parts that only one host has are on another one, too, before the deed."""
    same_round: bool = False
    """The round goes on, or ought to: what counts is the longest time without a step."""


def kill_worker(job: Job) -> None:
    """Kill the worker of the last rank."""
    job.kill_worker(job.node_of_rank(2))


def kill_node(job: Job) -> None:
    """Kill the node of the last rank, with its worker."""
    job.kill_node(job.node_of_rank(2))


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
    "fewer": Scenario("node killed, FSDP2 + AdamW, 10 MB", "sharded", 10, "2:3", 3, kill_node, 2, copied=True),
    "leave": Scenario("node drained, FSDP2 + AdamW, 10 MB", "sharded", 10, "2:3", 3, leave, 2),
    "more": Scenario("node joins, FSDP2 + AdamW, 10 MB", "sharded", 10, "2:3", 2, add_node, 3),
    "drain": Scenario("node drained, DDP, 10 MB", "keep", 10, "2:3", 3, leave, 2),
    "join": Scenario("node joins, DDP, 10 MB", "keep", 10, "2:3", 2, add_node, 3),
    "coord": Scenario("coordinator killed, DDP, 10 MB", "keep", 10, "2:3", 3, kill_coordinator, 3, same_round=True),
    "all": Scenario("SIGTERM to all, started again, DDP, 10 MB", "keep", 10, "3", 3, Job.begin_anew, 3),
}


def play(name: str, side: str) -> Run | None:
    """Play a scenario once; None: this side has no way to train so. Raises `BenchmarkError`."""
    scenario, launcher = SCENARIOS[name], side if side == "torchrun" else "warm"
    if side == IN_PLACE and scenario.mode != "keep":
        return None
    with tempfile.TemporaryDirectory(prefix="kept-") as folder:
        modes = {"torchrun": f"dcp-{scenario.mode}", "bare": f"bare-{scenario.mode}", IN_PLACE: IN_PLACE}
        flags = ("--topology", "{node}", "--persist", f"{folder}/disk") if side in {"kept", IN_PLACE} else ()
        with running_job(launcher, scenario.nnodes, Path(folder), flags=flags) as job:
            job.training = (str(SCRIPT), modes.get(side, scenario.mode), str(scenario.megabytes), folder)
            for node in "abc"[: scenario.begin]:
                job.start(node)
            before = job.await_steps(STEPS_BEFORE, scenario.begin)
            if not before:
                raise BenchmarkError(f"{name}, {side}: the nodes did not begin to train:\n{job.output()}")
            if scenario.copied and side == "kept" and isinstance(job, NodeclientJob):
                job.await_copies()
            scenario.deed(job)
            ends = isinstance(job, TorchrunJob) or not scenario.same_round  # its store is on one of the nodes
            follow = _await_next_round if ends else _watch_on
            return follow(job, before, name, side)


def _watch_on(job: Job, _before: str, name: str, side: str) -> Run:
    """Watch a training that goes on with all its ranks. Raises `BenchmarkError` if it does not, but for torchrun.

    Where a round ends all the same, its steps are not done twice: what counts is the longest time between two.
    """
    done = len(steps(job.marks))
    if not job.wait(lambda: len(steps(job.marks)) >= done + STEPS_AFTER, PATIENCE_S):
        return _never(job, name, side)
    moments = steps(job.marks)[done - 1 :]
    return Run(name, side, max(b - a for a, b in pairwise(moments)), 0)


def _await_next_round(job: Job, before: str, name: str, side: str) -> Run:
    """Wait until training goes on in another round. Raises `BenchmarkError` if it does not, but for torchrun."""
    size = SCENARIOS[name].world_size

    def look() -> Run | None:
        done = [mark for mark in job.marks if mark.mark == "step"]
        old = of_round(done, before)
        last, last_at = max(mark.step for mark in old), max(mark.at for mark in old)
        later = [mark for mark in done if mark.round != before and mark.at > last_at]
        new = [mark for mark in later if mark.step > last or side == "bare"]
        if len({mark.rank for mark in new if mark.world_size == size}) < size:
            return None
        redone = last + 1 - min(mark.step for mark in later)
        return Run(name, side, min(mark.at for mark in new) - last_at, redone)

    return job.wait(look, PATIENCE_S) or _never(job, name, side)


def _never(job: Job, name: str, side: str) -> Run:
    if side == "torchrun":
        return Run(name, side, None, 0)
    raise BenchmarkError(f"{name}, {side}: it did not go on within {PATIENCE_S:g} s:\n{job.output()}")


def cell(runs: Sequence[Run], side: str) -> str:
    """Return the result of a scenario on one side as text."""
    took = [run.seconds for run in runs if run.seconds is not None]
    if len(took) < len(runs):
        return f"not within {PATIENCE_S:g} s"
    words = f" ({max(run.redone for run in runs)} redone)" if runs and side != "bare" else ""
    return spread(took, ".2f") + words


def main() -> None:
    """Run as the flags say."""
    parser = argparse.ArgumentParser(prog="kept", description="Break rounds whose state is kept, and time the pause.")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="only this one; may be repeated")
    parser.add_argument("--side", choices=SIDES, action="append", help="only with this; may be repeated")
    parser.add_argument("--seconds", type=positive, default=3600, help="begin nothing after so long (default: 3600)")
    add_flags(parser, repeat=3)
    options = parser.parse_args()
    sides = options.side or SIDES
    prepare()
    runs = []
    until = time.monotonic() + options.seconds
    for _ in range(options.repeat):
        for name, side in product(options.only or SCENARIOS, sides):
            if time.monotonic() < until and (run := play(name, side)):
                runs.append(run)
    load = f"load {os.getloadavg()[0]:.1f}"
    table = Table(f"seconds without a new step (steps redone); {runs_words(options.repeat)}, {load}", *sides)
    for name, scenario in SCENARIOS.items():
        of = [[run for run in runs if (run.scenario, run.side) == (name, side)] for side in sides]
        table.add(scenario.words, *(cell(found, side) for found, side in zip(of, sides, strict=True)))
    print(table)
    write_report(options.json, "kept", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
