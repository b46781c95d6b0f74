"""What a person sees of the programs: on a terminal one live line, otherwise log lines; and what if nobody reads."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from aiohttp import web
from msgspec import structs

from coordinatord.protocol.codec import encode
from coordinatord.protocol.fields import HEARTBEAT_S_MIN
from coordinatord.protocol.messages import Goal, Outcome, Result
from coordinatord.runtime import __version__
from tests.support.cluster import Cluster
from tests.support.programs import BIN, TIMEOUT_S, Program
from tests.support.screens import read_terminal
from tests.support.strange_coordinator import WAIT, strange_coordinator

pytestmark = pytest.mark.slow


@contextmanager
def on_a_terminal(
    endpoint: str,
    *flags: str,
    command: Sequence[str] = ("true",),
    both: bool = False,
    around: Sequence[str] = (),
) -> Iterator[tuple[Program, int]]:
    """Start node a on a terminal; yield it and the terminal's other end, to be closed by the test.

    The terminal is its stderr, and its stdin and stdout as well if `both`. `around` is a command that starts it.
    """
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    join = (BIN / "nodeclient", "join", "--coord", endpoint, "--node-id", "a")
    inputs, outputs = (terminal, terminal) if both else (subprocess.DEVNULL, subprocess.PIPE)
    with Program(*around, *join, *flags, "--", *command, stdin=inputs, stdout=outputs, stderr=terminal) as node:
        os.close(terminal)
        yield node, controller


def test_on_a_terminal_one_live_line_counts_down(cluster: Cluster) -> None:
    flags = ("--job-id", cluster.job, "--nnodes", "2", "--join-timeout", "3000")
    with on_a_terminal(cluster.coordinator.endpoint, *flags) as (node, controller):
        first = r"waiting for nodes: 1 of 2 joined \(node a\) \((\d+) min (\d+) s left\)"
        drawn = read_terminal(controller, rf"(?s)\x1b\[K{first}.*\x1b\[K{first}.*\x1b\[K{first}")
        left = [60 * int(minutes) + int(seconds) for minutes, seconds in re.findall(first, drawn)]
        assert left == sorted(left, reverse=True)
        assert 3000 >= left[0] > left[2]
        assert "\n" not in drawn.partition("waiting for nodes")[2]
        node.signal(signal.SIGTERM)
        last = read_terminal(controller, "left the job")
        assert "\r\x1b[K" in last, "the live line is erased before a log line"
        assert node.wait() == 143
        os.close(controller)


async def test_a_node_whose_terminal_has_gone_goes_on() -> None:
    let_in, gone = asyncio.Event(), asyncio.Event()

    async def behave(socket: web.WebSocketResponse) -> None:
        hasty = structs.replace(WAIT, heartbeat_s=HEARTBEAT_S_MIN, wait_s=100.0)
        await socket.send_bytes(encode(hasty))
        let_in.set()
        await gone.wait()
        for number in range(5):
            await socket.receive_bytes()  # so that the node has received, and shown, the message before
            await socket.send_bytes(encode(structs.replace(hasty, reason=f"words {number}")))
        outcome = Outcome(Result.SUCCEEDED, 0, "all workers succeeded")
        await socket.receive_bytes()
        await socket.send_bytes(encode(structs.replace(hasty, goal=Goal.EXIT, wait_s=None, outcome=outcome)))

    async with strange_coordinator(behave) as (endpoint, _):
        with on_a_terminal(endpoint) as (node, controller):
            await let_in.wait()
            await asyncio.to_thread(read_terminal, controller, WAIT.reason)
            os.close(controller)
            gone.set()
            assert await asyncio.to_thread(node.wait) == 0


OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_a_ctrl_c_that_the_command_around_a_node_passes_on_as_well_counts_once(cluster: Cluster) -> None:
    """The terminal sends SIGINT to timeout(1) and to the node, and timeout sends the node another one."""
    around = (sys.executable, "-c", OWN_TERMINAL, "timeout", f"{TIMEOUT_S:g}")
    command = (
        sys.executable,
        "-c",
        "import signal\nprint('training', flush=True)\nwhile True: signal.sigtimedwait([], 0.1)",
    )
    flags = ("--job-id", cluster.job, "--nnodes", "1")
    endpoint = cluster.coordinator.endpoint
    with on_a_terminal(endpoint, *flags, command=command, both=True, around=around) as (node, other):
        read_terminal(other, "training")
        os.write(other, b"\x03")
        drawn = read_terminal(other, r"left the job[^\n]*\n")
        assert "stopping the workers of round 1: this node leaves" in drawn
        assert "SIGINT: left the job, as asked" in drawn
        assert "KeyboardInterrupt" not in drawn
        assert node.wait() == 128 + signal.SIGINT
        os.close(other)


def test_off_a_terminal_a_wait_is_one_log_line_a_change(cluster: Cluster) -> None:
    first = cluster.join("a", "--nnodes", "3")
    first.await_line(r"waiting for nodes: 1 of 3 joined \(node a\) \(for at most 600 s\)")
    cluster.join("b", "--nnodes", "3")
    first.await_line(r"waiting for nodes: 2 of 3 joined")
    cluster.join("c", "--nnodes", "3")
    last = cluster.await_round(3)
    assert "\x1b" not in first.output
    assert len([line for line in first.lines if "waiting for nodes" in line]) == 2
    last.finish()
    assert first.wait() == 0
    for line in first.lines:
        assert line.startswith("{") or (f"job={cluster.job}" in line and "node=a" in line)
    assert first.lines[-1].endswith("round=1")


DRAINS = 60
"""Each is a log line of a hundred bytes and more, so these are more than a page."""

DAEMON = (BIN / "coordinatord", "--host", "127.0.0.1", "--port", "0", "--ephemeral")

STUMBLE = """
import sys
from coordinatord.core.machine import Coordinator
Coordinator.handle = lambda *_: 1 / 0
from coordinatord.cli import main
main()
"""
"""A coordinatord with a bug, which it meets with the first request."""


@pytest.fixture
def unread() -> Iterator[tuple[int, int]]:
    """Yield the ends of a pipe that holds a page, of which nobody reads."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


def drain(url: str, name: str) -> None:
    """Send a request that is logged."""
    request = urllib.request.Request(  # noqa: S310 - http
        f"{url}/v1/nodes/{name}/drain", b'{"by": "me", "ahead": true}', {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
        assert answer.status == 200


def test_a_coordinator_serves_and_ends_though_nobody_reads_its_log(unread: tuple[int, int]) -> None:
    read, write = unread
    with Program(*DAEMON, stderr=write) as daemon:
        url = daemon.await_line(r"coordinatord listening on (\S+)")[1]
        for number in range(DRAINS):
            drain(url, f"gpu{number}")
        assert daemon.stop() == 0
        assert "state is kept in memory" in os.read(read, 65_536).decode().splitlines()[0]


def test_what_a_bug_has_said_last_comes_out_below_all_that_was_logged(unread: tuple[int, int]) -> None:
    read, write = unread
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 65_536)  # a traceback has the path of this checkout in every line
    with Program(sys.executable, "-c", STUMBLE, *DAEMON[1:], stderr=write) as daemon:
        url = daemon.await_line(r"coordinatord listening on (\S+)")[1]
        with pytest.raises(OSError, match=r"."):
            drain(url, "gpu1")
        assert daemon.wait() == 70
        said = os.read(read, 65_536).decode().splitlines()
        assert f"coordinatord {__version__} serves" in "\n".join(said[:3])
        assert any("ZeroDivisionError" in line for line in said[-4:-1])
        assert said[-1] == "coordinatord: this is a bug of coordinatord, please report it with the lines above"


def test_on_a_terminal_one_line_says_where_it_serves_in_words_that_can_be_used() -> None:
    controller, terminal = pty.openpty()
    command = (BIN / "coordinatord", "--port", "0", "--ephemeral")
    daemon = Program(*command, stdout=terminal, stderr=terminal)
    os.close(terminal)
    try:
        serves = r"serves: open (\S+), or ask with nodeclient status --coord (\S+)\r\n"
        drawn = read_terminal(controller, serves)
        [(url, endpoint)] = re.findall(serves, drawn)
        assert url == f"http://{endpoint}/"
        assert "[::]" not in url
        daemon.process.terminate()
        assert daemon.wait() == 0
        assert "listening" not in drawn
    finally:
        daemon.close()
        os.close(controller)
