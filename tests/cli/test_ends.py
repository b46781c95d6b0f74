"""How the programs end: a code, and a line that says why and what to do; and surroundings in which they go on."""

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from coordinatord.security.setup import FOLDER
from tests.support.canned_http import canned
from tests.support.cluster import Cluster, Coordinator
from tests.support.programs import BIN, Program, as_by_default, await_end, clean_environ, kill_quietly, run

pytestmark = pytest.mark.slow


def speak_ssh(handler: BaseHTTPRequestHandler) -> None:
    """Answer with bytes that are no HTTP."""
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    handler.close_connection = True


Server = Callable[[], AbstractContextManager[tuple[str, list[str]]]]


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (lambda: nullcontext(("127.0.0.1:1", [])), "Connection refused"),
        (lambda: canned({}), "answers with HTTP 404: is it a coordinatord?"),
        (lambda: canned(speak_ssh), "does not answer in HTTP: is it a coordinatord?"),
    ],
    ids=["nobody", "404", "ssh"],
)
def test_a_coordinator_that_is_not_there_is_looked_for_until_the_join_timeout(server: Server, words: str) -> None:
    with server() as (coord, _):
        ended = run(BIN / "nodeclient", "join", "--coord", coord, "--join-timeout", "3", "--", "true")
    assert (ended.returncode, ended.stdout) == (69, "")
    assert "Traceback" not in ended.stderr
    line = ended.stderr.splitlines()[-1]
    for part in ("no coordinator reached within 3 s", words, "see --coord and --join-timeout"):
        assert part in line


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


def test_nodes_that_disagree_are_refused_with_both_values(cluster: Cluster) -> None:
    cluster.join("a", "--nnodes", "2", "--max-restarts", "1").await_line("waiting for nodes: 1 of 2 joined")
    refused = cluster.join("b", "--nnodes", "2:4")
    assert refused.wait() == 77
    for text in (
        "--nnodes is 2:4 on this node (b), but 2 on a",
        "--max-restarts is 0 on this node (b), but 1 on a",
        "start all nodes with the same values",
    ):
        assert text in refused.lines[-1]


def test_a_node_with_another_command_than_another_one_is_let_in_with_a_warning(cluster: Cluster) -> None:
    cluster.join("a", "--nnodes", "3").await_line("waiting for nodes: 1 of 3 joined")
    other = cluster.join("b", "--nnodes", "3", script="--family")
    other.await_line("WARNING .*node b was started with another command than node a, and both are in job")
    other.await_line("waiting for nodes: 2 of 3 joined")


def test_a_signal_ends_a_node_that_waits(cluster: Cluster) -> None:
    node = cluster.join("a", "--nnodes", "2")
    node.await_line("waiting for nodes")
    node.signal(signal.SIGHUP)
    assert node.wait() == 129
    assert node.leftovers() == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, 137)])
def test_a_signal_ends_a_standalone_node_and_its_coordinator(signum: signal.Signals, code: int) -> None:
    with Program(BIN / "nodeclient", "join", "--standalone", "--", "sh", "-c", "echo up; sleep 1000") as node:
        node.await_line("^up$")
        node.signal(signum)
        assert node.wait() == code
        node.await_no_leftovers()


def test_a_coordinator_ends_well_on_either_signal() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        with Coordinator() as program:
            program.signal(signum)
            assert program.wait() == 0
            assert sum("listening on" in line for line in program.lines) == 1
            assert program.lines[-1].endswith(" stopping"), "there are no nodes that go on"
            assert "Traceback" not in program.output


NO_HOST_NAMES = ["a..b", f"{'x' * 70}.example:29400"]
"""Names that a resolver does not even look up (RFC 1035, 2.3.4: labels of 1 to 63 bytes)."""


@pytest.mark.parametrize("host", NO_HOST_NAMES, ids=lambda host: ascii(host)[:9])
def test_a_node_says_of_an_impossible_host_name_that_it_cannot_be_resolved(host: str) -> None:
    ended = run(BIN / "nodeclient", "join", "--coord", host, "--join-timeout", "3", "--", "true")
    assert (ended.returncode, ended.stdout) == (69, "")
    assert "Traceback" not in ended.stderr
    assert f"the host name {host.partition(':')[0]} cannot be resolved" in ended.stderr.splitlines()[-1]


def test_coordinatord_serves_though_systemd_cannot_be_notified(tmp_path: Path) -> None:
    environ = clean_environ(NOTIFY_SOCKET=str(tmp_path / "nowhere"))
    with Program(BIN / "coordinatord", "--host", "127.0.0.1", "--port", "0", "--ephemeral", environ=environ) as program:
        endpoint = program.await_line(r"coordinatord listening on http://(\S+)")[1]
        assert run(BIN / "nodeclient", "status", "--coord", endpoint).stdout.startswith("no jobs\n")
        assert program.stop() == 0
        assert "Traceback" not in program.output


@pytest.mark.parametrize("closed", [0, 1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "flags", [pytest.param((), id="cold", marks=pytest.mark.long), pytest.param(("--preload", "json"), id="warm")]
)
def test_a_node_without_a_standard_stream_gives_its_worker_an_empty_one(
    tmp_path: Path, closed: int, flags: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        f"with open({str(tmp_path / 'seen')!r}, 'w') as seen:\n"
        f"    print(os.readlink('/proc/self/fd/{closed}'), 'json.decoder' in sys.modules, file=seen)\n"
    )
    join = [str(BIN / "nodeclient"), "join", "--standalone", *flags, "--", sys.executable, str(script)]
    ended = run("sh", "-c", f'exec "$@" {closed}<&-', "sh", *join)
    assert ended.returncode == 0, ended.stderr
    where, warm = (tmp_path / "seen").read_text().split()
    if closed == 0:
        assert where == "/dev/null"
    assert warm == str(bool(flags))


def test_a_standalone_node_whose_coordinator_is_killed_ends_its_workers_and_says_so() -> None:
    command = ("sh", "-c", "echo worker $$; sleep 1000")
    with Program(BIN / "nodeclient", "join", "--standalone", "--stop-timeout", "1", "--", *command) as node:
        worker = int(node.await_line(r"^worker (\d+)")[1])
        [coordinator] = [
            pid for pid in node.leftovers() if b"coordinatord.cli" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        kill_quietly(coordinator, signal.SIGKILL)
        assert node.wait() == 69
        await_end(worker)
        assert node.leftovers() == []
        assert "Traceback" not in node.output
