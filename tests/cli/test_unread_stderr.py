"""A standard error that nobody reads, on a stopped terminal or in a full pipe, holds up nothing and no end."""

import fcntl
import os
import pty
import re
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from coordinatord.runtime import __version__
from tests.support.programs import BIN, TIMEOUT_S, Program
from tests.support.screens import read_terminal

pytestmark = pytest.mark.slow

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
