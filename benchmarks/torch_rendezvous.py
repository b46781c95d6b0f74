"""torch's own rendezvous beside ours: the same N nodes against a TCPStore, or etcd, in a process of its own.

The nodes are threads of a few processes, see `torch_rendezvous_nodes`. One is the only one in its process, which is
killed with -9. Then the others are made to join the next round at once. No torchrun does that: there, survivors notice
by their collectives.
"""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from daemon import START_WITHIN_S, Server, cpu_s_of, server
from tables import BenchmarkError, Table, runs_words, spread

LAST_CALL_S = 2
"""The wait for arrivals after the minimum is there, as long as coordinatord's. torch's default of 30 s would be the
whole figure."""

READY_WITHIN_S = 120.0
"""Four imports of torch on a busy host."""

NODES = (sys.executable, "-m", "benchmarks.torch_rendezvous_nodes")

ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""If it is not set, torch hands the addresses of round 1 to the workers of all rounds, and restarts mostly fail."""

WITHOUT_V2 = (3, 6)
"""The first etcd that lacks the API that torch uses."""


@dataclass(frozen=True, slots=True)
class RivalStep:
    """One round of theirs. Counts are those of the node with the most."""

    elapsed_s: float
    server_cpu_ms_per_node: float
    nodes_cpu_ms_per_node: float
    calls_per_node: int
    """Reads and writes of the shared state."""
    bytes_per_node: int
    """The bytes of that state, in both directions."""


@dataclass(frozen=True, slots=True)
class RivalRun:
    """One life of a rival's server; a step is None if it was not done in time."""

    rival: str
    nodes: int
    within_s: float
    join: RivalStep | None
    reform: RivalStep | None


@dataclass(frozen=True, slots=True)
class Rival:
    """A backend of torch's rendezvous."""

    name: str
    serve: Callable[[], AbstractAsyncContextManager[Server]]
    missing: Callable[[], str]
    """Returns what is not installed, or an empty text."""


def _c10d() -> AbstractAsyncContextManager[Server]:
    return server((*NODES, "serve"))


@asynccontextmanager
async def _etcd() -> AsyncIterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as client, socket.create_server(("127.0.0.1", 0)) as peer:
        url, peer_url = (f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in (client, peer))
    with tempfile.TemporaryDirectory() as state:
        flags = ("--data-dir", state, "--enable-v2", "--logger", "zap", "--log-level", "error")
        where = ("--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer_url)
        process = await asyncio.create_subprocess_exec("etcd", *flags, *where)
        try:
            async with asyncio.timeout(START_WITHIN_S):
                while not _answers(url):  # noqa: ASYNC110 - nothing tells us
                    await asyncio.sleep(0.1)
            yield Server(url, process.pid)
        finally:
            process.kill()
            await process.wait()


def _answers(url: str) -> bool:
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.socket() as attempt:
        return attempt.connect_ex((host, int(port))) == 0


def _no_torch() -> str:
    return "" if find_spec("torch") else "torch is not installed"


def _no_etcd() -> str:
    program = shutil.which("etcd")
    if program is None or find_spec("etcd") is None:
        return "it takes etcd (up to 3.5) and the Python package python-etcd, and one is not installed"
    facts = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603 - etcd
    found = re.search(r"(\d+)\.(\d+)", facts)
    if found is None or (int(found[1]), int(found[2])) >= WITHOUT_V2:
        return f"{facts.splitlines()[0]} has not got the API that torch uses; 3.5 has"
    return _no_torch()


RIVALS = {rival.name: rival for rival in (Rival("c10d", _c10d, _no_torch), Rival("etcd-v2", _etcd, _no_etcd))}


async def run_rival(rival: Rival, size: int, within_s: float) -> RivalRun:
    """Let so many nodes join, kill one, and let the others join again. Raises `BenchmarkError`."""
    halves = [(size - 1) // 2, (size - 1) - (size - 1) // 2, 1]
    firsts = [0, halves[0], size - 1]
    async with rival.serve() as served, AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(_nodes(rival.name, served.url, first, count, size))
            for first, count in zip(firsts, halves, strict=True)
            if count
        ]
        async with asyncio.timeout(READY_WITHIN_S):
            for process in processes:
                await _read(process)
        join = await _step(processes, served, size, within_s)
        reform = None
        if join is not None:
            lost = processes.pop()
            lost.kill()
            await lost.wait()
            reform = await _step(processes, served, size - 1, within_s)
    return RivalRun(rival.name, size, within_s, join, reform)


@asynccontextmanager
async def _nodes(backend: str, url: str, first: int, count: int, size: int) -> AsyncIterator[Process]:
    place = {"backend": backend, "endpoint": url.partition("//")[2], "first": first, "count": count, "size": size}
    command = (*NODES, json.dumps(place | {"last_call_s": LAST_CALL_S}))
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL, env=os.environ | ENVIRONMENT
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _step(processes: Sequence[Process], served: Server, size: int, within_s: float) -> RivalStep | None:
    cpu_s, nodes_cpu_s, began_at = served.cpu_s(), _cpu_s(processes), time.monotonic()
    for process in processes:
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        process.stdin.write(b"join\n")
    try:
        async with asyncio.timeout(within_s):
            facts = [await _read(process) for process in processes]
    except TimeoutError:
        return None
    cpu_s, nodes_cpu_s = served.cpu_s() - cpu_s, _cpu_s(processes) - nodes_cpu_s
    nodes = [node for part in facts for node in part["nodes"]]
    if sorted(node["rank"] for node in nodes) != list(range(size)):
        raise BenchmarkError(f"the ranks of torch's {size} nodes are not 0 to {size - 1}, each once")
    return RivalStep(
        elapsed_s=max(node["at"] for node in nodes) - began_at,
        server_cpu_ms_per_node=1_000 * cpu_s / size,
        nodes_cpu_ms_per_node=1_000 * nodes_cpu_s / size,
        calls_per_node=max(node["calls"] for node in nodes),
        bytes_per_node=max(node["bytes"] for node in nodes),
    )


def _cpu_s(processes: Sequence[Process]) -> float:
    return sum(cpu_s_of(process.pid) for process in processes)


async def _read(process: Process) -> dict[str, Any]:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    line = await process.stdout.readline()
    if not line:
        raise BenchmarkError(f"torch's nodes ended with {await process.wait()}")
    facts: dict[str, Any] = json.loads(line)
    if "error" in facts:
        raise BenchmarkError(f"torch's nodes: {facts['error']}")
    return facts


FIGURES: tuple[tuple[str, str, Callable[[RivalStep], float]], ...] = (
    ("ranks after the word to join / the loss, s", ".3f", lambda step: step.elapsed_s),
    ("server's processor time, ms per node", ".3f", lambda step: step.server_cpu_ms_per_node),
    ("nodes' own processor time, ms per node", ".3f", lambda step: step.nodes_cpu_ms_per_node),
    ("reads and writes of the state by a node", "d", lambda step: step.calls_per_node),
    ("bytes of these", "d", lambda step: step.bytes_per_node),
)


def rival_table(runs: Sequence[RivalRun]) -> Table:
    """Return a table of the runs of one rival with one number of nodes."""
    title = f"{runs[0].nodes:,} nodes with torch's {runs[0].rival}, {runs_words(len(runs))}"
    shown = Table(title, "join", "re-form")
    for label, spec, figure in FIGURES:
        cells = []
        for steps in ([run.join for run in runs], [run.reform for run in runs]):
            done = [figure(step) for step in steps if step is not None]
            late = f"{len(steps) - len(done)} not within {runs[0].within_s:g} s"
            cells.append(spread(done, spec) if len(done) == len(steps) else late)
        shown.add(label, *cells)
    return shown
