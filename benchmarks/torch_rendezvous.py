"""torch's own rendezvous beside ours: the same N nodes with c10d, against a TCPStore in a process of its own.

The nodes are threads of a few processes, see `torch_rendezvous_nodes`. One is the only one in its process, which is
killed with -9. Then the others are made to join the next round at once. No torchrun does that: there, survivors notice
by their collectives.
"""

import asyncio
import json
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from daemon import Players, Server, cpu_s_of, players, server
from tables import BenchmarkError, Figures, Table, runs_words, spread

LAST_CALL_S = 2
"""The wait for arrivals after the minimum is there, as long as coordinatord's. torch's default of 30 s would be the
whole figure."""

READY_WITHIN_S = 120.0
"""Four imports of torch on a busy host."""

NODES = (sys.executable, "-m", "benchmarks.torch_rendezvous_nodes")

ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""If it is not set, torch hands the addresses of round 1 to the workers of all rounds, and restarts mostly fail."""


@dataclass(frozen=True, slots=True)
class TorchStep:
    """One round of theirs. Counts are those of the node with the most."""

    elapsed_s: float
    server_cpu_ms_per_node: float
    nodes_cpu_ms_per_node: float
    calls_per_node: int
    """Reads and writes of the shared state."""
    bytes_per_node: int
    """The bytes of that state, in both directions."""


@dataclass(frozen=True, slots=True)
class TorchRun:
    """One life of a TCPStore; a step is None if it was not done in time."""

    nodes: int
    within_s: float
    join: TorchStep | None
    reform: TorchStep | None


async def run_torch(size: int, within_s: float) -> TorchRun:
    """Let so many nodes join, kill one, and let the others join again. Raises `BenchmarkError`."""
    halves = [(size - 1) // 2, (size - 1) - (size - 1) // 2, 1]
    firsts = [0, halves[0], size - 1]
    async with server((*NODES, "serve")) as served, AsyncExitStack() as stack:
        place = {"endpoint": served.url.partition("//")[2], "size": size, "last_call_s": LAST_CALL_S}
        processes = []
        for first, count in zip(firsts, halves, strict=True):
            if count:
                command = (*NODES, json.dumps(place | {"first": first, "count": count}))
                started = players("torch's nodes", *command, environ=ENVIRONMENT, stderr=DEVNULL)
                processes.append(await stack.enter_async_context(started))
        async with asyncio.timeout(READY_WITHIN_S):
            for nodes in processes:
                await nodes.tell()
        join = await _step(processes, served, size, within_s)
        reform = None
        if join is not None:
            lost = processes.pop().process
            lost.kill()
            await lost.wait()
            reform = await _step(processes, served, size - 1, within_s)
    return TorchRun(size, within_s, join, reform)


async def _step(processes: Sequence[Players], served: Server, size: int, within_s: float) -> TorchStep | None:
    cpu_s, nodes_cpu_s, began_at = served.cpu_s(), _cpu_s(processes), time.monotonic()
    try:
        async with asyncio.timeout(within_s):
            facts = await asyncio.gather(*(nodes.tell("join") for nodes in processes))
    except TimeoutError:
        return None
    cpu_s, nodes_cpu_s = served.cpu_s() - cpu_s, _cpu_s(processes) - nodes_cpu_s
    nodes = [node for part in facts for node in part["nodes"]]
    if sorted(node["rank"] for node in nodes) != list(range(size)):
        raise BenchmarkError(f"the ranks of torch's {size} nodes are not 0 to {size - 1}, each once")
    return TorchStep(
        elapsed_s=max(node["at"] for node in nodes) - began_at,
        server_cpu_ms_per_node=1_000 * cpu_s / size,
        nodes_cpu_ms_per_node=1_000 * nodes_cpu_s / size,
        calls_per_node=max(node["calls"] for node in nodes),
        bytes_per_node=max(node["bytes"] for node in nodes),
    )


def _cpu_s(processes: Sequence[Players]) -> float:
    return sum(cpu_s_of(nodes.process.pid) for nodes in processes)


FIGURES: Figures = (
    ("ranks after the word to join / the loss, s", ".3f", lambda step: step.elapsed_s),
    ("server's processor time, ms per node", ".3f", lambda step: step.server_cpu_ms_per_node),
    ("nodes' own processor time, ms per node", ".3f", lambda step: step.nodes_cpu_ms_per_node),
    ("reads and writes of the state by a node", "d", lambda step: step.calls_per_node),
    ("bytes of these", "d", lambda step: step.bytes_per_node),
)


def torch_table(runs: Sequence[TorchRun]) -> Table:
    """Return a table of the runs with one number of nodes."""
    title = f"{runs[0].nodes:,} nodes with torch's c10d, {runs_words(len(runs))}"
    shown = Table(title, "join", "re-form")
    for label, spec, figure in FIGURES:
        cells = []
        for steps in ([run.join for run in runs], [run.reform for run in runs]):
            done = [figure(step) for step in steps if step is not None]
            late = f"{len(steps) - len(done)} not within {runs[0].within_s:g} s"
            cells.append(spread(done, spec) if len(done) == len(steps) else late)
        shown.add(label, *cells)
    return shown
