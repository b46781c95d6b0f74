"""Times rendezvous: N simulated nodes join one job, then one of them is lost and the others get new ranks.

The coordinatord is real and has a process of its own; `fleet` plays the nodes in this one. README.md beside this file
explains the figures.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import uvloop
from daemon import NO_HEARTBEAT_S, Daemon, coordinatord
from fleet import Fleet, Traffic, fleet_of
from tables import (
    BenchmarkError,
    Figures,
    Table,
    add_etcd_flag,
    add_flags,
    allow_connections,
    errors_in_one_line,
    runs_words,
    sizes,
    spread,
    write_report,
)
from torch_rendezvous import TorchRun, run_torch, torch_table

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.messages import Assignment, Goal

JOB = "rendezvous"

RUN_WITHIN_S = 300.0
"""A bound for one run, so that a benchmark of something broken ends; 10,000 nodes take some ten seconds."""


@dataclass(frozen=True, slots=True)
class Step:
    """One formation of a round. Counts are those of the node with the most; the README explains them."""

    elapsed_s: float
    """The time from the first connection, or from the end of the lost node's, until the last node had its rank."""
    decided_s: float
    """The same from the last node's join, or from the end of the reconnect grace: the coordinator's own share."""
    cpu_ms_per_node: float
    """The coordinatord's time."""
    nodes_cpu_ms_per_node: float
    """The time of the process that plays the nodes."""
    messages_from_node: int
    messages_to_node: int
    bytes_from_node: int
    bytes_to_node: int
    commits: int
    records: int


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a coordinatord with one job of so many nodes."""

    nodes: int
    join: Step
    reform: Step
    resident_kib_per_node: float


async def measure(size: int, *, tls: bool = False, members: int = 0) -> Run:
    """Start a coordinatord, let a job of `size` nodes join and lose one, over TLS or not. Raises `BenchmarkError`.

    `members` is as of `coordinatord`.
    """
    async with (
        asyncio.timeout(RUN_WITHIN_S),
        coordinatord(NO_HEARTBEAT_S, tls=tls, members=members) as daemon,
        fleet_of(size, daemon.url, JOB, access=daemon.access) as fleet,
    ):
        resident_kib = daemon.resident_kib()
        join = await _step(fleet, daemon, fleet.join, {Goal.WAIT: (0, 1), Goal.RUN: (1, 1)})
        resident_kib = daemon.resident_kib() - resident_kib
        reform = await _step(fleet, daemon, fleet.lose_one, {Goal.STOP: (0, 1), Goal.RUN: (1, 1)})
    return Run(size, join, reform, resident_kib / size)


async def _step(fleet: Fleet, daemon: Daemon, begin: Callable[[], None], goals: dict[Goal, tuple[int, int]]) -> Step:
    entries, cpu_s, nodes_cpu_s = daemon.ledger.entries(), daemon.cpu_s(), time.process_time()
    began_at = time.monotonic()
    begin()
    check_ranks(await fleet.ranked())
    await daemon.ledger.started(JOB, fleet.round)
    cpu_s, nodes_cpu_s = daemon.cpu_s() - cpu_s, time.process_time() - nodes_cpu_s
    check_goals(fleet, goals)
    entries = daemon.ledger.entries() - entries
    joining = began_at < fleet.last_joined_at
    decided_at = fleet.last_joined_at if joining else began_at + Policy().reconnect_grace_s

    def most(count: Callable[[Traffic], int]) -> int:
        return max(count(node.traffic) for node in fleet.nodes)

    return Step(
        elapsed_s=fleet.last_ranked_at - began_at,
        decided_s=fleet.last_ranked_at - decided_at,
        cpu_ms_per_node=1_000 * cpu_s / len(fleet.nodes),
        nodes_cpu_ms_per_node=1_000 * nodes_cpu_s / len(fleet.nodes),
        messages_from_node=most(lambda traffic: traffic.frames_sent),
        messages_to_node=most(lambda traffic: traffic.frames_received),
        bytes_from_node=most(lambda traffic: traffic.bytes_sent),
        bytes_to_node=most(lambda traffic: traffic.bytes_received),
        commits=entries.commits,
        records=entries.records,
    )


def check_ranks(parts: Sequence[Assignment]) -> None:
    """Check the round's promise: ranks 0 to N - 1 each once, one master for all. Raises `BenchmarkError`."""
    size = len(parts)
    ranks = sorted(part.first_rank for part in parts)
    shared = {(part.world_size, part.group_world_size, part.master_address, part.master_port) for part in parts}
    if ranks != list(range(size)) or len(shared) != 1 or parts[0].world_size != size:
        raise BenchmarkError(f"the ranks of {size} nodes are not 0 to {size - 1}, each once")


def check_goals(fleet: Fleet, allowed: dict[Goal, tuple[int, int]]) -> None:
    """Check that each node got so many messages of each goal. Raises `BenchmarkError`."""
    for node in fleet.nodes:
        for goal in Goal:
            least, most = allowed.get(goal, (0, 0))
            if not least <= node.traffic.goals[goal] <= most:
                raise BenchmarkError(f"{node.name} was told to {goal} {node.traffic.goals[goal]} times in one round")


# Output

FIGURES: Figures = (
    ("ranks after the first connection / the loss, s", ".3f", lambda step: step.elapsed_s),
    ("ranks after the last join / the decision, s", ".3f", lambda step: step.decided_s),
    ("coordinator's processor time, ms per node", ".3f", lambda step: step.cpu_ms_per_node),
    ("nodes' own processor time, ms per node", ".3f", lambda step: step.nodes_cpu_ms_per_node),
    ("messages from a node", "d", lambda step: step.messages_from_node),
    ("messages to a node", "d", lambda step: step.messages_to_node),
    ("bytes from a node", "d", lambda step: step.bytes_from_node),
    ("bytes to a node", "d", lambda step: step.bytes_to_node),
    ("commits", "d", lambda step: step.commits),
    ("records", "d", lambda step: step.records),
)


def table(runs: Sequence[Run]) -> Table:
    """Return a table of the runs with one number of nodes."""
    shown = Table(f"{runs[0].nodes:,} nodes, {runs_words(len(runs))}", "join", "re-form")
    shown.add_figures(FIGURES, [run.join for run in runs], [run.reform for run in runs])
    memory = [run.resident_kib_per_node for run in runs]
    shown.add("memory of the coordinator, KiB per node", spread(memory, ".1f"))
    return shown


def _compare(runs: Sequence[Run], beside: Sequence[TorchRun]) -> str:
    """Return how much longer torch took to join."""
    theirs = [run.join.elapsed_s for run in beside if run.join is not None]
    if len(theirs) < len(beside):
        return ""
    ratio = median(theirs) / median(run.join.elapsed_s for run in runs)
    return f"  c10d takes {ratio:.0f} times as long to join as coordinatord in this run"


# The program


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    options = _parse()
    with errors_in_one_line("rendezvous"):
        allow_connections(max(options.nodes))
        gc.disable()  # A collection would halt all nodes together, which never happens on hosts of their own.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            _measure_all(runner, options)


def _measure_all(runner: asyncio.Runner, options: argparse.Namespace) -> None:
    report: list[dict[str, object]] = []
    for size in options.nodes:
        runs = []
        for _ in range(options.repeat):
            gc.collect()
            runs.append(runner.run(measure(size, tls=options.tls, members=options.etcd)))
        print(table(runs), flush=True)
        report += [{"side": "coordinatord", **asdict(run)} for run in runs]
        if options.torch and size <= options.torch_most:
            beside = [runner.run(run_torch(size, options.torch_within)) for _ in range(options.repeat)]
            print(torch_table(beside), _compare(runs, beside), sep="\n", flush=True)
            report += [{"side": "c10d", **asdict(run)} for run in beside]
    write_report(options.json, "rendezvous", report)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rendezvous", description="Time rendezvous with simulated nodes.")
    parser.add_argument("--nodes", type=_sizes, default=[1_000], help="how many, separated by commas (default: 1000)")
    add_flags(parser, repeat=3)
    add_etcd_flag(parser)
    parser.add_argument("--tls", action="store_true", help="nodes have tokens and speak TLS, as they do by default")
    parser.add_argument("--torch", action="store_true", help="beside torch's own rendezvous, with c10d")
    parser.add_argument("--torch-most", type=int, default=128, metavar="N", help="not with more nodes (default: 128)")
    parser.add_argument("--torch-within", type=float, default=60.0, metavar="S", help="of a step (default: 60)")
    return parser.parse_args()


def _sizes(text: str) -> list[int]:
    numbers = sizes(text)
    if min(numbers) < 2:  # noqa: PLR2004 - one is lost, and one must be left
        raise argparse.ArgumentTypeError("at least 2 nodes are needed")
    return numbers


if __name__ == "__main__":
    main()
