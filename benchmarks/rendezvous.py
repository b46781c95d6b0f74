"""Times rendezvous: N simulated nodes join one job, then one of them is lost and the others get new ranks.

The coordinatord is real and has a process of its own; `fleet` plays the nodes in this one. What the figures mean is in
README.md beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import uvloop
from daemon import Daemon, DaemonError, coordinatord
from fleet import Fleet, NodeError, Traffic, fleet_of

from coordinatord.core.policy import Policy
from coordinatord.wire.messages import Assignment, Goal

FILES_BESIDE = 64
"""Open files that either process needs beside one connection for each node."""

RUN_WITHIN_S = 300.0
"""A bound for one run, so that a benchmark of something broken ends; 4,000 nodes take a few seconds."""


@dataclass(frozen=True, slots=True)
class Step:
    """One formation of a round. What is counted is that of the node with the most; the README says what is meant."""

    elapsed_s: float
    """From the first connection, or from the end of the lost node's, until the last node had its rank."""
    decided_s: float
    """The same from the last node's join, or from the end of the reconnect grace: what the coordinator is to answer
    for."""
    cpu_ms_per_node: float
    messages_from_node: int
    messages_to_node: int
    bytes_from_node: int
    bytes_to_node: int


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a coordinatord with one job of so many nodes."""

    nodes: int
    join: Step
    reform: Step
    resident_kib_per_node: float


async def measure(size: int) -> Run:
    """Start a coordinatord, let a job of `size` nodes join and lose one. Raises `NodeError` and `DaemonError`."""
    async with asyncio.timeout(RUN_WITHIN_S), coordinatord() as daemon, fleet_of(size, daemon.url) as fleet:
        resident_kib = daemon.resident_kib()
        join = await _join(fleet, daemon)
        resident_kib = daemon.resident_kib() - resident_kib
        reform = await _reform(fleet, daemon)
    return Run(size, join, reform, resident_kib / size)


async def _join(fleet: Fleet, daemon: Daemon) -> Step:
    cpu_s, began_at = daemon.cpu_s(), time.monotonic()
    fleet.join()
    check_ranks(await fleet.ranked())
    await fleet.running()
    check_goals(fleet, {Goal.WAIT: (0, 1), Goal.RUN: (1, 1)})
    return _step(fleet, began_at, fleet.last_joined_at, daemon.cpu_s() - cpu_s)


async def _reform(fleet: Fleet, daemon: Daemon) -> Step:
    cpu_s, began_at = daemon.cpu_s(), time.monotonic()
    fleet.lose_one()
    check_ranks(await fleet.ranked())
    await fleet.running()
    check_goals(fleet, {Goal.STOP: (0, 1), Goal.RUN: (1, 1)})
    return _step(fleet, began_at, began_at + Policy().reconnect_grace_s, daemon.cpu_s() - cpu_s)


def _step(fleet: Fleet, began_at: float, decided_at: float, cpu_s: float) -> Step:
    def most(count: Callable[[Traffic], int]) -> int:
        return max(count(node.traffic) for node in fleet.nodes)

    return Step(
        elapsed_s=fleet.last_ranked_at - began_at,
        decided_s=fleet.last_ranked_at - decided_at,
        cpu_ms_per_node=1_000 * cpu_s / len(fleet.nodes),
        messages_from_node=most(lambda traffic: traffic.frames_sent),
        messages_to_node=most(lambda traffic: traffic.frames_received),
        bytes_from_node=most(lambda traffic: traffic.bytes_sent),
        bytes_to_node=most(lambda traffic: traffic.bytes_received),
    )


def check_ranks(parts: Sequence[Assignment]) -> None:
    """Hold the round to its promise: ranks 0 to N - 1 each once, one master for all. Raises `NodeError`."""
    size = len(parts)
    ranks = sorted(part.first_rank for part in parts)
    shared = {(part.world_size, part.group_world_size, part.master_address, part.master_port) for part in parts}
    if ranks != list(range(size)) or len(shared) != 1 or parts[0].world_size != size:
        raise NodeError(f"the ranks of {size} nodes are not 0 to {size - 1}, each once")


def check_goals(fleet: Fleet, allowed: dict[Goal, tuple[int, int]]) -> None:
    """Hold the coordinator to so many messages of each goal for each node, none of any other. Raises `NodeError`."""
    for node in fleet.nodes:
        for goal in Goal:
            least, most = allowed.get(goal, (0, 0))
            if not least <= node.traffic.goals[goal] <= most:
                raise NodeError(f"{node.name} was told to {goal} {node.traffic.goals[goal]} times in one round")


# What people read

FIGURES: tuple[tuple[str, str, Callable[[Step], float]], ...] = (
    ("ranks after the first connection / the loss, s", ".3f", lambda step: step.elapsed_s),
    ("ranks after the last join / the decision, s", ".3f", lambda step: step.decided_s),
    ("coordinator's processor time, ms per node", ".2f", lambda step: step.cpu_ms_per_node),
    ("messages from a node", "d", lambda step: step.messages_from_node),
    ("messages to a node", "d", lambda step: step.messages_to_node),
    ("bytes from a node", "d", lambda step: step.bytes_from_node),
    ("bytes to a node", "d", lambda step: step.bytes_to_node),
)


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Show the runs with one number of nodes: medians, and ranges where there is one."""
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    yield f"{f'{runs[0].nodes:,} nodes, {count}: median (least - most)':<52}{'join':<26}re-form"
    for title, unit, figure in FIGURES:
        join = _spread([figure(run.join) for run in runs], unit)
        reform = _spread([figure(run.reform) for run in runs], unit)
        yield f"  {title:<50}{join:<26}{reform}"
    memory = [run.resident_kib_per_node for run in runs]
    yield f"  {'memory of the coordinator, KiB per node':<50}{_spread(memory, '.1f')}"


def _spread(values: Sequence[float], unit: str) -> str:
    middle = type(values[0])(median(values))
    text = format(middle, unit)
    least, most = format(min(values), unit), format(max(values), unit)
    return text if least == most else f"{text} ({least} - {most})"


# The program


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    options = _parse()
    _allow_connections(max(options.nodes))
    runs: list[Run] = []
    gc.disable()  # A collection would halt all nodes together, which on hosts of their own never happens.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for size in options.nodes:
            repeated = [_run(runner, size) for _ in range(options.repeat)]
            print("\n".join(table(repeated)), flush=True)
            runs += repeated
    if options.json is not None:
        options.json.write_text(json.dumps(_report(runs), indent=2) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rendezvous.py", description="Time rendezvous with simulated nodes.")
    parser.add_argument("--nodes", type=_sizes, default=[1_000], help="how many, separated by commas (default: 1000)")
    parser.add_argument("--repeat", type=_positive, default=3, help="runs of each, for medians (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run into this file as well")
    return parser.parse_args()


def _sizes(text: str) -> list[int]:
    sizes = [int(part) for part in text.split(",")]
    if min(sizes) < 2:  # noqa: PLR2004 - one is lost, and one must be left
        raise argparse.ArgumentTypeError("at least 2 nodes are needed")
    return sizes


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def _allow_connections(nodes: int) -> None:
    """Raise the limit of open files, here and for the coordinatord to come; end the program where it is too low."""
    needed = nodes + FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        why = f"{nodes} nodes need {needed} open files, but the hard limit is {hard}"
        sys.exit(f"rendezvous.py: {why}: raise it (ulimit -Hn), or give fewer --nodes")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _run(runner: asyncio.Runner, size: int) -> Run:
    gc.collect()
    why = ""
    try:
        return runner.run(measure(size))
    except* (NodeError, DaemonError, TimeoutError) as errors:
        why = _first(errors)
    sys.exit(f"rendezvous.py: {size} nodes: {why}")


def _first(error: BaseException) -> str:
    """Say what is in an exception group, at any depth: of nodes that fail together, one is enough."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or "not done in time"


def _report(runs: Sequence[Run]) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "runs": [asdict(run) for run in runs],
    }


if __name__ == "__main__":
    main()
