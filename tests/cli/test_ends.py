"""How the programs end: the exit code, and the one line that says why and what to do."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from coordinatord.security.setup import FOLDER
from nodeclient.host.ports import PortReservation
from tests.support.canned_http import canned
from tests.support.cluster import Cluster, Coordinator
from tests.support.programs import BIN, Program, as_by_default, clean_environ, run

pytestmark = pytest.mark.slow


@contextmanager
def other_server() -> Iterator[int]:
    """Serve something else; yield the port."""
    with canned({}) as (endpoint, _):
        yield int(endpoint.rpartition(":")[2])


@contextmanager
def garbage_server() -> Iterator[int]:
    """Answer each connection with bytes that are no HTTP; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(ConnectionError):  # a client that notices may hang up at once
                    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                    connection.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def silent_server() -> Iterator[int]:
    """Accept connections and never send anything; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def nobody() -> Iterator[int]:
    """Yield a port where nobody listens, unless a coordinator is started there."""
    with closing(PortReservation()) as reservation:
        yield reservation.port


def join(coord: str, *flags: str) -> tuple[int, str]:
    """Join in vain; return the exit code and the last line."""
    ended = run(BIN / "nodeclient", "join", "--coord", coord, *flags, "--", "true")
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    return ended.returncode, ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (nobody, "Connection refused"),
        (other_server, "answers with HTTP 404: is it a coordinatord?"),
        (garbage_server, "is it a coordinatord?"),
        (silent_server, "no coordinator reached"),
    ],
)
def test_a_coordinator_that_is_not_there_is_looked_for_until_the_join_timeout(server: object, words: str) -> None:
    assert callable(server)
    with server() as port:
        code, line = join(f"127.0.0.1:{port}", "--join-timeout", "3")
        assert code == 69
        assert "no coordinator reached within 3 s" in line
        assert words in line
        assert "see --coord and --join-timeout" in line


def test_a_port_in_use_is_said_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        where = ("--host", "127.0.0.1", "--port", port, "--state-dir", tmp_path / "state", "--log-level", "warning")
        ended = run(BIN / "coordinatord", *where, environ=clean_environ(**as_by_default(tmp_path / "home")))
    assert (ended.returncode, ended.stdout) == (71, "")
    assert ended.stderr == (
        f"coordinatord: port {port} on 127.0.0.1 is in use: is another coordinatord running?"
        " choose another port with --port\n"
    )
    assert not (tmp_path / "home").exists(), "it leaves no tokens"
    assert not (tmp_path / "state" / FOLDER).exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--nnodes", "3"), ("--nnodes is 3 on this node (b), but 2 on a",)),
        (("--nnodes", "2", "--max-restarts", "5"), ("--max-restarts is 5 on this node (b), but 1 on a",)),
        (("--nnodes", "2:4"), ("--nnodes is 2:4 on this node (b), but 2 on a", "--max-restarts is 0 on this node (b)")),
    ],
)
def test_nodes_that_disagree_are_refused_with_both_values(
    cluster: Cluster, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    cluster.join("a", "--nnodes", "2", "--max-restarts", "1").await_line("waiting for nodes: 1 of 2 joined")
    refused = cluster.join("b", *flags)
    assert refused.wait() == 77
    for text in words:
        assert text in refused.lines[-1]
    assert "start all nodes with the same values" in refused.lines[-1]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_node_that_waits(cluster: Cluster, signum: signal.Signals, code: int) -> None:
    node = cluster.join("a", "--nnodes", "2")
    node.await_line("waiting for nodes")
    node.signal(signum)
    assert node.wait() == code
    assert node.leftovers() == []


def test_a_signal_ends_a_node_that_trains_and_its_workers_save(cluster: Cluster) -> None:
    node = cluster.join("a", "--nnodes", "1")
    cluster.await_round(1)
    node.signal(signal.SIGTERM)
    assert node.wait() == 143
    node.await_event("saved")
    assert node.leftovers() == []


def test_a_signal_ends_a_node_that_looks_for_the_coordinator() -> None:
    with nobody() as port, Program(BIN / "nodeclient", "join", "--coord", f"127.0.0.1:{port}", "--", "true") as node:
        node.await_line("Connection refused")
        node.signal(signal.SIGINT)
        assert node.wait() == 130


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, 137)])
def test_a_signal_ends_a_standalone_node_and_its_coordinator(signum: signal.Signals, code: int) -> None:
    with Program(BIN / "nodeclient", "join", "--standalone", "--", "sh", "-c", "echo up; sleep 1000") as node:
        node.await_line("^up$")
        node.signal(signum)
        assert node.wait() == code
        node.await_no_leftovers()


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("exit 0", 0, "all workers succeeded"),
        ("exit 255", 255, "exit code 255"),
        ("kill -SEGV $$", 139, "killed by SIGSEGV"),
    ],
)
def test_standalone_ends_with_the_code_of_the_worker(script: str, code: int, words: str) -> None:
    ended = run(BIN / "nodeclient", "join", "--standalone", "--", "sh", "-c", script)
    assert ended.returncode == code
    assert words in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_coordinator_ends_well_on_either_signal() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        with Coordinator() as program:
            program.signal(signum)
            assert program.wait() == 0
            assert sum("listening on" in line for line in program.lines) == 1
            assert "stopping; the nodes keep their workers" in program.lines[-1]
            assert "Traceback" not in program.output
