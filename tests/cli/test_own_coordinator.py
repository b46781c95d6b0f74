"""`nodeclient run` with the rendezvous of torchrun: the node at the endpoint's address brings the coordinator along."""

import asyncio
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Desired, Goal, Phase
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.parse import parse
from nodeclient.host.ports import PortReservation
from nodeclient.shell import embedded_coordinator
from nodeclient.shell.embedded_coordinator import EmbeddedCoordinatorError, coordinator_for
from tests.support.namespaces import apart
from tests.support.programs import BIN, Program, clean_environ, kill_quietly, run, wait_until
from tests.support.raw_session import IDLE, connect, get, join
from tests.support.secured import secured

pytestmark = pytest.mark.slow

BRINGS = "this node brings one along"

LISTENS = "0A"
"""The state of a socket that listens, in tables of the kernel."""

MANY = 200
"""Answers of a coordinator that is not about to end: it would have ended before it has given so many."""


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port at which nobody listens, and which the kernel gives to nobody else meanwhile."""
    with closing(PortReservation()) as reservation:
        yield reservation.port


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    """Start nodeclients as torchrun is started; each has one worker that runs a line of shell."""
    with ExitStack() as nodes:

        def start_one(endpoint: str, nnodes: int, script: str, *flags: str, **environ: str) -> Program:
            rendezvous = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=mnist")
            command = ("run", *rendezvous, f"--nnodes={nnodes}", *flags, "--no-python", "sh", "-c", script)
            return nodes.enter_context(Program(BIN / "nodeclient", *command, environ=clean_environ(**environ)))

        yield start_one


def operate(*words: str) -> subprocess.CompletedProcess[str]:
    """Run an operator's command."""
    return run(BIN / "nodeclient", *words)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        *(pytest.param(host, marks=pytest.mark.long) for host in ("127.0.0.1", "[::1]", socket.gethostname())),
    ],
)
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


def test_a_node_verifies_the_coordinator_of_another_node_and_not_its_own_child(
    port: int, start: Callable[..., Program], tmp_path: Path
) -> None:
    secured(tmp_path)  # so that a token is in the user's directory
    nodes = [start(f"localhost:{port}", 2, "true", XDG_CONFIG_HOME=str(tmp_path / "config")) for _ in range(2)]
    assert [node.wait() for node in nodes] == [0, 0], [node.output for node in nodes]
    for node in nodes:
        assert ("cannot verify which coordinator answers" in node.output) is (BRINGS not in node.output), node.output


def test_on_another_host_than_the_endpoint_s_nothing_is_brought_along(start: Callable[..., Program]) -> None:
    node = start("192.0.2.1:29400", 2, "exit 0")
    node.await_line("looking for the coordinator: .*192.0.2.1:29400")
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in node.leftovers()]
    assert not any(b"coordinatord.cli" in command for command in commands), "its guard is all that it has started"
    assert BRINGS not in node.output
    assert node.stop() == 143


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_coordinator_serves_on_while_another_node_needs_it(
    signum: signal.Signals, port: int, start: Callable[..., Program]
) -> None:
    host = start(f"localhost:{port}", 2, "echo up; sleep 1000", "--nnodes", "1:2")
    host.await_line(BRINGS)
    other = start(f"localhost:{port}", 2, "echo up; sleep 1000", "--nnodes", "1:2")
    for node in (host, other):
        node.await_line("ranks? [01] of 2")
    host.signal(signum)
    host.wait()
    if signum is signal.SIGTERM:
        assert "the coordinator that this node brought along serves on for mnist" in host.output
    other.await_line("starting round [0-9]+: rank 0 of 1")  # only a coordinator can form a round
    assert "refused" not in other.output
    assert other.stop() == 143
    if signum is signal.SIGTERM:  # a node that was killed may come back: the coordinator waits a little for it
        host.await_no_leftovers()


def test_a_job_begins_anew_at_once_if_the_host_that_brought_the_coordinator_along_is_started_again(
    port: int, start: Callable[..., Program]
) -> None:
    host, other = (start(f"localhost:{port}", 2, "exec sleep 1000") for _ in range(2))
    for node in (host, other):
        node.await_line("round 1: 1 worker runs")
    if BRINGS not in host.output:
        host, other = other, host
    for pid in [*host.leftovers(), host.pid]:
        kill_quietly(pid)
    host.wait()
    again = start(f"localhost:{port}", 2, "exec sleep 1000")
    again.await_line("1 worker runs")
    other.await_line("this coordinator does not know run .*, in which this node was: the job begins anew")


async def test_a_coordinator_that_does_not_start_gives_its_exit_code(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EmbeddedCoordinatorError, match="did not start") as raised:
        async with coordinator_for(structs.replace(config_at(port), log_format="morse")):
            pass
    assert raised.value.exit_code == ExitCode.USAGE
    assert "morse" in capfd.readouterr().err


def config_at(port: int, host: str = "127.0.0.1") -> JoinConfig:
    """Return the config of a node that brings a coordinator along to a port."""
    words = ("run", "--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{port}", "--nnodes=2", "--no-python", "true")
    chosen = parse(words, clean_environ())
    assert isinstance(chosen, JoinConfig)
    return chosen


@asynccontextmanager
async def brought_along(port: int) -> AsyncIterator[str]:
    """Take the place of a node that brings a coordinator along; yield where it serves."""
    async with coordinator_for(config_at(port)) as (config, embedded):
        assert embedded.pid is not None
        assert embedded.ended is None  # another may take its place
        assert BRINGS in config.remarks[-1]
        yield f"http://127.0.0.1:{port}"


async def test_the_coordinator_stays_until_the_others_have_heard_how_the_job_ended(port: int) -> None:
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as own:
        url = await own.enter_async_context(brought_along(port))
        async with connect(url, join()) as peer:
            await peer.report(Phase.SUCCEEDED, await peer.receive_goal(Goal.RUN))
            await peer.receive_goal(Goal.EXIT)
            ending = tasks.create_task(own.aclose())
            for _ in range(MANY):
                await peer.beat()
                assert (await peer.receive(Desired)).goal is Goal.EXIT
            assert not ending.done()
        await ending


async def test_who_waits_for_the_end_of_the_job_hears_of_it_before_the_coordinator_ends(port: int) -> None:
    async with AsyncExitStack() as own:
        url = await own.enter_async_context(brought_along(port))
        async with connect(url, join()) as peer:
            run = await peer.receive_goal(Goal.RUN)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /v1/jobs/job?wait=30 HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n")
            await peer.report(Phase.SUCCEEDED, run)
            await peer.receive_goal(Goal.EXIT)
        await own.aclose()
        answer = await reader.read()
        writer.close()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["exit_code"] == 0


async def test_a_node_that_fails_leaves_the_coordinator_to_the_others(port: int) -> None:
    async with AsyncExitStack() as others:
        with suppress(ZeroDivisionError):
            async with coordinator_for(config_at(port)) as (_, embedded):
                assert embedded.pid is not None
                others.callback(kill_quietly, embedded.pid)
                peer = await others.enter_async_context(connect(f"http://127.0.0.1:{port}", join()))
                await peer.report(Phase.RUNNING, await peer.receive_goal(Goal.RUN))
                raise ZeroDivisionError
        await peer.beat()
        assert (await peer.receive(Desired)).goal is Goal.RUN


async def nodes_of(url: str) -> list[Any]:
    """Return the nodes of the only job, as the HTTP API has them."""
    _, _, answer = await get(f"{url}/v1/jobs", "application/json")
    [job] = answer["jobs"]
    nodes: list[Any] = job["nodes"]
    return nodes


async def test_a_node_that_was_lost_may_still_hear_how_the_job_was_stopped(port: int) -> None:
    """The connection was closed, so the node is lost a second later; it comes back after the job was stopped."""
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as own:
        url = await own.enter_async_context(brought_along(port))
        async with connect(url, join("a")) as peer:
            await peer.receive_goal(Goal.RUN)
            async with connect(url, join("spare")) as spare:
                received = await spare.receive_goal(Goal.WAIT)
            while len(await nodes_of(url)) > 1:
                pass  # without a heartbeat: many of them in a second are not those of a nodeclient
            stopped = await asyncio.to_thread(operate, "stop", "--coord", url.removeprefix("http://"), "job")
            assert stopped.returncode == 0, stopped.stderr
            await peer.report(Phase.STOPPED, await peer.receive_goal(Goal.STOP))
            await peer.receive_goal(Goal.EXIT)
        ending = tasks.create_task(own.aclose())
        async with connect(url, join("spare", observed=structs.replace(IDLE, run=received.run))) as spare:
            outcome = (await spare.receive_goal(Goal.EXIT)).outcome
        assert outcome is not None
        assert outcome.exit_code == ExitCode.STOPPED
        ending.cancel()  # a coordinator waits 10 s for one that was lost


async def test_a_coordinator_of_one_s_own_that_does_not_react_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_coordinator, "KILL_AFTER_S", 0.1)
    chosen = parse(("join", "--standalone", "--", "true"), clean_environ())
    assert isinstance(chosen, JoinConfig)
    async with coordinator_for(chosen) as (_, embedded):
        assert embedded.pid is not None
        assert embedded.ended is not None
        os.kill(embedded.pid, signal.SIGSTOP)
    assert embedded.ended.result() == "killed by SIGKILL"


def test_on_this_host_alone_nothing_listens_but_at_loopback(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = ("--standalone", "--", "sh", "-c", f"touch {ready}; exec sleep infinity")
    with Program(BIN / "nodeclient", "join", *command) as node:
        wait_until("the worker", lambda: ready.exists() or not node.reading)
        found = [address for pid in (node.pid, *node.leftovers()) for address in listened_at(pid)]
        assert len(found) >= 3, "the coordinator, the probe and the kept state have ports"
        assert {str(address) for address in found} == {"127.0.0.1"}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", socket.gethostname()])
async def test_a_coordinator_that_only_this_host_can_find_listens_only_at_loopback(host: str, port: int) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    async with coordinator_for(config_at(port, host)) as (config, embedded):
        assert embedded.pid is not None
        [address] = listened_at(embedded.pid)
    assert address.is_loopback is (host != socket.gethostname()), address
    assert ("only for this host: " in config.remarks[-1]) is address.is_loopback


NONLOCAL = "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind; echo 1 > /proc/sys/net/ipv6/ip_nonlocal_bind"
"""Lets sockets bind to addresses of other hosts, as keepalived and HAProxy need it."""

OWN_ADDRESSES = """
import asyncio, sys
from nodeclient.shell.embedded_coordinator import own_addresses
print([host for host in sys.argv[1:] if asyncio.run(own_addresses(host))])
"""


def test_an_address_is_not_this_host_s_because_a_socket_could_bind_to_it() -> None:
    prefix = apart("--net", setup=f"ip link set lo up; ip address add 10.0.0.2/24 dev lo; {NONLOCAL}")
    own = ["10.0.0.2", "::ffff:10.0.0.2", "127.0.0.1", "::1", "0.0.0.0"]  # noqa: S104 - it is only asked for
    answer = run(*prefix, sys.executable, "-c", OWN_ADDRESSES, *own, "10.0.0.3", "2001:db8::1")
    assert answer.stdout.strip() == str(own), answer.stderr


def listened_at(pid: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses at which a process listens for TCP, see proc_pid_net(5); none if it has just ended."""
    held, tables = set(), list[str]()
    with suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it was closed a moment ago
                held.add(str(descriptor.readlink()))
        tables = [Path(f"/proc/{pid}/net/{table}").read_text() for table in ("tcp", "tcp6")]
    addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    for table in tables:
        for line in table.splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in held:
                words = bytes.fromhex(local.partition(":")[0])
                turned = b"".join(
                    words[at : at + 4][::-1] for at in range(0, len(words), 4)
                )  # in the order of the host
                addresses.append(ipaddress.ip_address(turned))
    return addresses
