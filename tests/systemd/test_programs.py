"""The programs under parts of systemd that need no machine: their notifications, and sockets that it passes."""

import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coordinatord.commands.delayed_end import CLOSE_MARGIN_S
from coordinatord.core.keeping.write_plan import END_S
from coordinatord.protocol.exit_codes import ExitCode
from nodeclient.host.ports import PortReservation
from tests.support.programs import BIN, TIMEOUT_S, Program, clean_environ, run

pytestmark = pytest.mark.slow

DAEMON = (str(BIN / "coordinatord"), "--ephemeral")

SHOW_ENVIRONMENT = "import os, time; print('inherited', *[n for n in os.environ if n[:4] in ('NOTI', 'WATC', 'LIST')])"


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    """Listen where systemd would."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(TIMEOUT_S)
        listening.bind(str(tmp_path / "notify"))
        yield listening


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    """Start programs, and leave nothing of them."""
    started: list[Program] = []

    def begin(*argv: str, **environ: str) -> Program:
        started.append(Program(*argv, environ=clean_environ(**environ)))
        return started[-1]

    yield begin
    for program in started:
        program.close()


def await_message(notified: socket.socket, wanted: str) -> str:
    """Wait until systemd would have received a message with this; return it."""
    while wanted not in (said := notified.recv(4096).decode()):
        assert said
    return said


def passing(*addresses: str, flags: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the prefix of a program that systemd passes listening sockets to, at the first connection."""
    program = shutil.which("systemd-socket-activate")
    if program is None:
        pytest.skip("systemd-socket-activate is not installed")
    return (program, *flags, *(f"--listen={address}" for address in addresses))


def test_the_daemon_says_when_it_serves_that_it_lives_and_when_it_stops(
    notified: socket.socket, start: Callable[..., Program]
) -> None:
    watched = {"NOTIFY_SOCKET": notified.getsockname(), "WATCHDOG_USEC": "100000"}
    daemon = start(*DAEMON, "--host", "127.0.0.1", "--port", "0", **watched)
    url = daemon.await_line(r"coordinatord listening on (\S+)")[1]
    assert notified.recv(4096).decode() == f"READY=1\nSTATUS=serving at {url}: live jobs 0, nodes 0"
    for _ in range(3):
        await_message(notified, "WATCHDOG=1")
    assert daemon.stop() == 0
    await_message(notified, "STOPPING=1")


def test_a_node_says_where_it_stands_and_no_child_of_its_speaks_for_it(
    notified: socket.socket, start: Callable[..., Program]
) -> None:
    script = f"{SHOW_ENVIRONMENT}; time.sleep(1000)"
    join = (str(BIN / "nodeclient"), "join", "--standalone", "--nproc-per-node", "2", "--stop-timeout", "90")
    watched = {"NOTIFY_SOCKET": notified.getsockname(), "WATCHDOG_USEC": "20000000"}
    node = start(*join, "--", sys.executable, "-c", script, **watched)
    assert notified.recv(4096).decode() == "READY=1\nSTATUS=looking for the coordinator"
    await_message(notified, "WATCHDOG=1")
    await_message(notified, "STATUS=round 1, ranks 0 to 1 of 2: running")
    assert node.await_line("inherited(.*)")[1] == ""
    assert node.stop() == ExitCode.TERMINATED
    await_message(notified, "STOPPING=1\nEXTEND_TIMEOUT_USEC=120000000")
    await_message(notified, "STOPPING=1\nSTATUS=SIGTERM: left the job")


def test_a_daemon_that_awaits_nodes_asks_for_as_long_as_they_may_take(
    notified: socket.socket, start: Callable[..., Program]
) -> None:
    daemon = start(*DAEMON, "--insecure", "--host", "127.0.0.1", "--port", "0", NOTIFY_SOCKET=notified.getsockname())
    url = daemon.await_line(r"coordinatord listening on http://(\S+)")[1]
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(1000)"
    join = (str(BIN / "nodeclient"), "join", "--coord", url, "--nproc-per-node", "1", "--stop-timeout", "200")
    node = start(*join, "--", sys.executable, "-u", "-c", script)
    node.await_line("deaf")
    node.signal(signal.SIGTERM)
    daemon.await_line("round stopped")
    daemon.signal(signal.SIGTERM)
    _, _, asked = await_message(notified, "EXTEND_TIMEOUT_USEC=").partition("=")
    assert 0 <= 200 + END_S + CLOSE_MARGIN_S - int(asked) / 1_000_000 < TIMEOUT_S
    assert daemon.stop() == 0, "a second signal ends the wait"


def test_the_daemon_serves_with_the_sockets_that_systemd_passes(start: Callable[..., Program]) -> None:
    with closing(PortReservation()) as first, closing(PortReservation()) as second:
        addresses = [f"127.0.0.1:{reservation.port}" for reservation in (first, second)]
        daemon = start(*passing(*addresses), *DAEMON, "--insecure", "--port", "1")
        daemon.await_line("Listening on .* as 4")
    for address in addresses:
        assert run(BIN / "nodeclient", "status", "--coord", address).stdout.startswith("no jobs\n")
    daemon.await_line(f"^coordinatord listening on http://{addresses[0]}$")
    daemon.await_line("--host and --port have no effect")
    assert daemon.stop() == 0


@pytest.mark.parametrize("flags", [(), ("--datagram",)], ids=["unix", "datagram"])
def test_a_socket_that_no_node_can_connect_to_is_refused(
    tmp_path: Path, start: Callable[..., Program], flags: tuple[str, ...]
) -> None:
    address = tmp_path / "passed"
    daemon = start(*passing(str(address), flags=flags), *DAEMON)
    daemon.await_line("Listening on")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if flags else socket.SOCK_STREAM) as knocking:
        knocking.connect(str(address))
        knocking.send(b".")
    assert daemon.wait() == ExitCode.OS_ERROR
    assert daemon.lines[-1].startswith("coordinatord: systemd passed a socket that nodes cannot connect to: ")
