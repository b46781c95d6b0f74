"""Real gloo training that loses workers and nodes: how long there is no training step, and where that time goes.

python -m benchmarks.recovery --repeat 5

Each scenario is played with torchrun at its best, with nodeclient as it is ("cold"), with `--preload torch` ("warm"),
and with a script whose workers outlive a round ("in-place"), in turn, so that a noisy machine is noisy for all. All
times are by the clock that all processes of a machine share: the training script notes what it does, the launchers' own
logs have their events, and the kernel reports when a process ended. `recovery_jobs` has the jobs, and `recovery_parts`
makes the figures.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from recovery_jobs import (
    COORDINATOR_HOST,
    IN_PLACE,
    LAST_CALL_S,
    PRELOAD,
    SIDES,
    TORCHRUN_SETTINGS,
    Job,
    prepare,
    running_job,
)
from recovery_parts import STARTED_PARTS, STOPPED_PARTS, last, of_round, parts, steps, total, worker_parts
from tables import BenchmarkError, Table, add_flags, errors_in_one_line, positive, runs_words, spread, write_report

from tests.support.hosts import Hosts

ALL_SIDES = (*SIDES, IN_PLACE)

NODES = 3

NAMES = "abcdefgh"

STEPS_BEFORE = 10
"""The steps of training before anything is done to it."""

PATIENCE_S = 60
"""How long to wait for a job to go on: torchrun needs some 25 s for a lost node, and where it needs more it mostly
never does."""


class LostError(Exception):
    """The job did not go on; the text describes its state."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one scenario that was played once."""

    scenario: str
    side: str
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    """They add up to the seconds."""
    why_not: str = ""
    """Why the job did not go on, so that there are no figures; empty if it did."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A job to be played with."""

    job: Job
    nodes: int
    """The most nodes that it may have."""
    patience_s: float

    def begin(self, nodes: int) -> str:
        """Start nodes and let them train; return the round. Raises `BenchmarkError`."""
        for name in NAMES[:nodes]:
            self.job.start(name)
        round_ = self.job.await_steps(STEPS_BEFORE, nodes)
        if not round_:
            raise BenchmarkError(f"{nodes} nodes did not begin to train; what they said:\n{self.job.output()}")
        return round_

    def await_first_step(self, world_size: int, without: Collection[str] = frozenset()) -> str:
        """Wait until a round other than those of `without` has done a step; return it. Raises `LostError`."""
        if found := self.job.await_steps(1, world_size, without, self.patience_s):
            return found
        raise self.lost()

    def lost(self) -> LostError:
        """Return the error that the job does not go on."""
        return LostError("job lost" if self.job.over else f"not within {self.patience_s:g} s")


@dataclass(frozen=True, slots=True)
class Break:
    """What was done to a job."""

    world_size: int
    """The world size that it has when it goes on."""
    lost: str = ""
    """The node that is no longer part of it."""


def kill_worker(stage: Stage) -> Break:
    """Kill the worker of the last rank."""
    stage.job.kill_worker(stage.job.node_of_rank(stage.nodes - 1))
    return Break(stage.nodes)


def freeze_worker(stage: Stage) -> Break:
    """Stop the worker of the last rank by a signal: it keeps its connections, and does nothing any more."""
    stage.job.freeze_worker(stage.job.node_of_rank(stage.nodes - 1))
    return Break(stage.nodes)


def kill_node(stage: Stage, rank: int) -> Break:
    """Kill launcher and worker of the node with this rank, -1 for the last."""
    victim = stage.job.node_of_rank(rank % stage.nodes)
    stage.job.kill_node(victim)
    return Break(stage.nodes - 1, victim)


def cut_node(stage: Stage) -> Break:
    """Pull the cable of the last node."""
    victim = stage.job.node_of_rank(stage.nodes - 1)
    stage.job.cut_node(victim)
    return Break(stage.nodes - 1, victim)


def leave(stage: Stage) -> Break:
    """Have the last node leave, as for maintenance: its launcher gets SIGTERM."""
    victim = stage.job.node_of_rank(stage.nodes - 1)
    stage.job.nodes[victim].signal(signal.SIGTERM)
    return Break(stage.nodes - 1, victim)


def add_node(stage: Stage) -> Break:
    """Start a second node."""
    stage.job.start(NAMES[1])
    return Break(2)


def pause(stage: Stage, deed: Callable[[Stage], Break], nodes: int | None = None) -> dict[str, float]:
    """Let nodes train (all if None), do something to them, wait until they train again. Raises `LostError`.

    Return how long there was no step, in parts.
    """
    job, words = stage.job, stage.job.words
    before = stage.begin(nodes or stage.nodes)
    owners = {mark.pid: job.node_of(mark.pid) for mark in of_round(job.marks, before)}
    begun = {mark.round for mark in job.marks}  # a job that may have fewer nodes may have begun with fewer
    done_at = time.monotonic()
    broken = deed(stage)
    after = stage.await_first_step(broken.world_size, without=begun)
    new, last_step = of_round(job.marks, after), max(steps(of_round(job.marks, before)))
    survivors = [name for name in job.nodes if name != broken.lost]
    ends = (job.ends[pid] for pid, owner in owners.items() if owner != broken.lost and pid in job.ends)
    stopped = max(ends, default=done_at)
    detected = min((at for at in job.logged(words, words.detected, survivors) if at >= done_at), default=stopped)
    ranked = max(at for at in job.logged(words, words.ranked, survivors) if at <= last(new, "begun"))
    return parts(STOPPED_PARTS, last_step, detected, stopped, ranked, *worker_parts(new))


def start(stage: Stage) -> dict[str, float]:
    """Start one node of a job that may have more, and wait for its first step. Raises `LostError`."""
    job, began = stage.job, time.monotonic()
    job.start(NAMES[0])
    first = stage.await_first_step(1)
    new = of_round(job.marks, first)
    words = job.words
    ready, ranked = min(job.logged(words, words.ready)), max(job.logged(words, words.ranked))
    prepared = max(job.logged(words, words.prepared), default=ready)
    return parts(STARTED_PARTS, began, ready, prepared, ranked, *worker_parts(new))


def end(stage: Stage) -> dict[str, float]:
    """Let the training end well; return the time from the end of the last worker to that of the last launcher.

    Raises `LostError`, and `BenchmarkError` if a launcher does not end with 0.
    """
    job = stage.job
    round_ = stage.begin(stage.nodes)
    workers = {mark.pid for mark in of_round(job.marks, round_)}
    job.finish()
    if not job.wait(lambda: job.over, stage.patience_s):
        raise stage.lost()
    if any(codes := [node.wait() for node in job.nodes.values()]):
        raise BenchmarkError(f"launchers ended with {codes}, instead of 0; what they said:\n{job.output()}")
    return {"launchers": max(job.ends[node.pid] for node in job.nodes.values()) - max(job.ends[pid] for pid in workers)}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is played."""

    words: str
    play: Callable[[Stage], dict[str, float]]
    nnodes: str = "{fewer}:{nodes}"
    """MIN:MAX, where `nodes` are those of the command line."""
    least: int = 2
    """The least number of nodes that it needs."""
    on_hosts: bool = False


SCENARIOS = {
    "worker": Scenario("worker killed -9", partial(pause, deed=kill_worker), "{nodes}", least=1),
    "frozen": Scenario("worker stopped by SIGSTOP, with no alarm set", partial(pause, deed=freeze_worker), "{nodes}"),
    "node": Scenario("node killed -9", partial(pause, deed=partial(kill_node, rank=-1))),
    "rank0": Scenario(
        "node of rank 0 (torchrun: the store) killed -9", partial(pause, deed=partial(kill_node, rank=0))
    ),
    "cut": Scenario("node cut off, without a FIN", partial(pause, deed=cut_node), on_hosts=True),
    "add": Scenario("second node joins one that trains", partial(pause, deed=add_node, nodes=1), "1:{nodes}"),
    "leave": Scenario("node leaves, by SIGTERM to its launcher", partial(pause, deed=leave)),
    "start": Scenario("elastic start with one node, to its first step", start, "1:{nodes}", least=1),
    "end": Scenario("all workers done, until all launchers are gone", end, "{nodes}", least=1),
}


@contextmanager
def hosts_for(scenario: Scenario, nodes: int) -> Iterator[Hosts | None]:
    """Make the hosts that a scenario needs; yield None if this machine suffices. Raises `LostError` if that fails."""
    with ExitStack() as stack:
        hosts = None
        if scenario.on_hosts:
            try:
                hosts = stack.enter_context(Hosts(COORDINATOR_HOST, *NAMES[:nodes]))
            except pytest.skip.Exception as skipped:
                raise LostError(f"skipped: {skipped.msg}") from None
        yield hosts


def play(name: str, side: str, nodes: int, patience_s: float) -> Outcome:
    """Play a scenario once. Raises `BenchmarkError`."""
    scenario = SCENARIOS[name]
    nnodes = scenario.nnodes.format(nodes=nodes, fewer=nodes - 1)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="recovery-") as folder,
            hosts_for(scenario, nodes) as hosts,
            running_job(side, nnodes, Path(folder), hosts) as job,
        ):
            divided = scenario.play(Stage(job, nodes, patience_s))
    except LostError as lost:
        return Outcome(name, side, why_not=str(lost))
    return Outcome(name, side, total(divided), divided)


def cell(outcomes: Sequence[Outcome], part: str = "") -> str:
    """Return the result of a scenario on one side as text: the whole, or a part of it."""
    done = [outcome for outcome in outcomes if not outcome.why_not and (not part or part in outcome.parts)]
    shown = spread([outcome.parts[part] if part else outcome.seconds for outcome in done], ".2f")
    missed = [outcome.why_not for outcome in outcomes if outcome.why_not]
    if part or not missed:
        return shown
    return f"{shown}, {missed[0]}" if done else missed[0]


def report(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    """Print the tables."""
    of: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        of.setdefault((outcome.scenario, outcome.side), []).append(outcome)
    count = max(map(len, of.values()), default=0)  # fewer than requested if it was ended early
    whole = Table(f"seconds without a step; {runs_words(count)}", *options.sides)
    for name in options.scenarios:
        whole.add(SCENARIOS[name].words, *(cell(of.get((name, side), [])) for side in options.sides))
    print(f"\n{whole}\n")
    for name in options.scenarios:
        names = max((list(outcome.parts) for outcome in outcomes if outcome.scenario == name), key=len, default=[])
        if len(names) > 1:
            where = Table(f"of it: {SCENARIOS[name].words}", *options.sides)
            for part in names:
                where.add(part, *(cell(of.get((name, side), []), part) for side in options.sides))
            print(f"{where}\n")


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Break real training in several ways, and time how it goes on.")
    add_flags(parser, 5)
    names = ", ".join(f"{name} ({scenario.words})" for name, scenario in SCENARIOS.items())
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help=f"which, of: {names}; default: all")
    parser.add_argument(
        "--sides", default=",".join(ALL_SIDES), help=f"with what, of: {', '.join(ALL_SIDES)}; default: all"
    )
    parser.add_argument("--nodes", type=positive, default=NODES, help=f"of one worker each (default: {NODES})")
    patience = f"seconds for a job to go on (default: {PATIENCE_S})"
    parser.add_argument("--patience", type=positive, default=PATIENCE_S, metavar="S", help=patience)
    options = parser.parse_args(arguments)
    options.scenarios, options.sides = options.scenarios.split(","), options.sides.split(",")
    for flag, words, known in (("scenarios", options.scenarios, SCENARIOS), ("sides", options.sides, ALL_SIDES)):
        if unknown := [word for word in words if word not in known]:
            parser.error(f"--{flag}: there is no {', '.join(unknown)}, only {', '.join(known)}")
    most = len(NAMES)
    if not (least := max(SCENARIOS[name].least for name in options.scenarios)) <= options.nodes <= most:
        parser.error(f"--nodes {options.nodes}: these scenarios take {least} to {most}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = options_of(arguments)
    print(f"torchrun: c10d, last_call_timeout={LAST_CALL_S}, {' '.join(map('='.join, TORCHRUN_SETTINGS.items()))}")
    print(f"cold: nodeclient join; warm: nodeclient join {' '.join(PRELOAD)}; coordinatord --retry-pause 0")
    print("in-place: as warm, with a script of workerlib.rounds, which keeps its state")
    print("What does not go on once is not played again.", flush=True)
    prepare()
    outcomes: list[Outcome] = []
    try:
        with errors_in_one_line("recovery"):
            for outcome in outcomes_of(options):
                outcomes.append(outcome)  # one by one, so that an error does not hide those before it
                words = SCENARIOS[outcome.scenario].words
                print(f"{words}, {outcome.side}: {cell([outcome])}", file=sys.stderr, flush=True)
    finally:
        report(outcomes, options)
        write_report(options.json, "recovery", [asdict(outcome) for outcome in outcomes])


def outcomes_of(options: argparse.Namespace) -> Iterator[Outcome]:
    """Play all requested scenarios; one that does not go on is not played again. Raises `BenchmarkError`."""
    hopeless: set[tuple[str, str]] = set()
    for _, name, side in product(range(options.repeat), options.scenarios, options.sides):
        if (name, side) not in hopeless:
            outcome = play(name, side, options.nodes, options.patience)
            if outcome.why_not:
                hopeless.add((name, side))
            yield outcome


if __name__ == "__main__":
    main()
