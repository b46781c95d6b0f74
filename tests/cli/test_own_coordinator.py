"""`nodeclient run` with the rendezvous of torchrun: the node at the endpoint's address brings the coordinator along."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from coordinatord.wire.messages import Desired, Goal, Phase
from nodeclient.config import JoinConfig, parse
from nodeclient.standalone import coordinator_for
from tests.support.cluster import Coordinator
from tests.support.programs import BIN, Program, clean_environ
from tests.support.wire import connect, join

pytestmark = pytest.mark.slow

BRINGS = "this node brings one along"

MANY = 200
"""Answers of a coordinator that is not about to end: it would have ended before it has given so many."""


@pytest.fixture
def port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        chosen: int = probe.getsockname()[1]
        return chosen


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    """Start nodeclients as torchrun is started, each with one worker that runs a line of shell."""
    nodes: list[Program] = []

    def start_one(endpoint: str, nnodes: int, script: str, *flags: str, **environ: str) -> Program:
        rendezvous = (
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            endpoint,
            "--rdzv-id",
            "mnist",
            "--nnodes",
            str(nnodes),
        )
        command = (BIN / "nodeclient", "run", *rendezvous, *flags, "--no-python", "sh", "-c", script)
        nodes.append(Program(*map(str, command), environ=clean_environ(**environ)))
        return nodes[-1]

    yield start_one
    for node in nodes:
        node.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", socket.gethostname()])
def test_of_two_nodes_on_the_host_of_the_endpoint_one_brings_it_along(
    host: str, port: int, start: Callable[..., Program]
) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    nodes = [start(f"{host}:{port}", 2, "echo worker $RANK/$WORLD_SIZE") for _ in range(2)]
    assert [node.wait() for node in nodes] == [0, 0], [node.output for node in nodes]
    said = [line for node in nodes for line in node.lines]
    assert sum(BRINGS in line for line in said) == 1
    assert sorted(line for line in said if line.startswith("worker")) == ["worker 0/2", "worker 1/2"]
    assert not any("in use" in line for line in said)
    assert [node.leftovers() for node in nodes] == [[], []]


def test_a_coordinator_that_listens_there_already_is_used(
    own_coordinator: Callable[..., Coordinator], start: Callable[..., Program]
) -> None:
    coordinator = own_coordinator()
    node = start(coordinator.endpoint, 1, "exit 0")
    assert node.wait() == 0
    coordinator.await_job("mnist", state="succeeded")
    assert BRINGS not in node.output


def test_on_another_host_than_the_endpoint_s_nothing_is_brought_along(start: Callable[..., Program]) -> None:
    node = start("192.0.2.1:29400", 2, "exit 0")
    node.await_line("looking for the coordinator: .*192.0.2.1:29400")
    assert node.leftovers() == []
    assert BRINGS not in node.output
    assert node.stop() == 143


def test_the_coordinator_goes_with_its_node(port: int, start: Callable[..., Program]) -> None:
    host = start(f"localhost:{port}", 2, "echo up; sleep 1000")
    host.await_line(BRINGS)
    other = start(f"localhost:{port}", 2, "echo up; sleep 1000")
    for node in (host, other):
        node.await_line("^.*up$")
    assert host.stop() == 143
    host.await_no_leftovers()
    other.await_line(f"localhost:{port}: Connection refused|the coordinator closed the connection")
    assert other.stop() == 143


def test_a_coordinator_that_cannot_start_is_an_error(port: int, start: Callable[..., Program]) -> None:
    node = start(f"localhost:{port}", 2, "exit 0", COORDINATORD_HOST="192.0.2.1")
    assert node.wait() == 69
    assert "192.0.2.1 is no address of this host" in node.output
    assert node.lines[-1] == "nodeclient: the coordinator that this node brings along did not start"


@asynccontextmanager
async def brought_along(port: int) -> AsyncIterator[str]:
    """Be a node that brings a coordinator along; yield where it serves."""
    words = ("run", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=2", "--no-python", "true")
    chosen = parse(words, clean_environ())
    assert isinstance(chosen, JoinConfig)
    async with coordinator_for(chosen) as (config, processes):
        assert len(processes) == 1
        assert BRINGS in config.remarks[-1]
        yield f"http://127.0.0.1:{port}"


@pytest.mark.asyncio
async def test_the_coordinator_stays_until_the_others_have_heard_how_the_job_ended(port: int) -> None:
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as own:
        url = await own.enter_async_context(brought_along(port))
        async with connect(url, join()) as peer:
            await peer.report(Phase.SUCCEEDED, await peer.hear_goal(Goal.RUN))
            await peer.hear_goal(Goal.EXIT)
            ending = tasks.create_task(own.aclose())
            for _ in range(MANY):
                await peer.beat()
                assert (await peer.hear(Desired)).goal is Goal.EXIT
            assert not ending.done()
        await ending


@pytest.mark.asyncio
async def test_the_coordinator_does_not_wait_for_a_job_that_goes_on(port: int) -> None:
    async with AsyncExitStack() as own:
        url = await own.enter_async_context(brought_along(port))
        async with connect(url, join(nodes=2)) as peer:
            await peer.hear_goal(Goal.WAIT)
            await own.aclose()
            await peer.hear_end()
