"""Messages to systemd and sockets from it, with a socket in its place; tests/systemd has the real one."""

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coordinatord.runtime.systemd import STATUS_CHARACTERS_MAX, SystemdNotifier, status_of
from tests.support.programs import TIMEOUT_S

PID = 4711

SEVERAL_SIGNS_S = 0.02
"""A watchdog of a millisecond would have had forty signs of life."""


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    """Listen where systemd would."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(TIMEOUT_S)
        listening.bind(str(tmp_path / "notify"))
        yield listening


def received(notified: socket.socket) -> str:
    return notified.recv(4096).decode()


def systemd(notified: socket.socket, **environ: str) -> SystemdNotifier:
    """Return one that systemd has given these variables."""
    return SystemdNotifier({"NOTIFY_SOCKET": notified.getsockname(), **environ}, PID)


def test_assignments_go_together_in_one_message(notified: socket.socket) -> None:
    systemd(notified).notify("READY=1", status_of("serving\nwell"))
    assert received(notified) == "READY=1\nSTATUS=serving well"


def test_a_name_in_the_abstract_namespace_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(TIMEOUT_S)
        listening.bind("")  # the kernel chooses one
        name = listening.getsockname().decode()
        SystemdNotifier({"NOTIFY_SOCKET": f"@{name[1:]}"}, PID).notify("READY=1")
        assert listening.recv(100) == b"READY=1"


def test_a_status_is_one_line_of_limited_length() -> None:
    assert status_of("a\n  b\tc") == "STATUS=a b c"
    assert len(status_of("x" * 10_000)) == len("STATUS=") + STATUS_CHARACTERS_MAX


def test_no_child_inherits_what_systemd_said(notified: socket.socket) -> None:
    said = {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "LISTEN_FDS": "1", "LISTEN_PID": "1", "LISTEN_FDNAMES": "nodes"}
    environ = {"NOTIFY_SOCKET": notified.getsockname(), **said, "STATE_DIRECTORY": "/var/lib/x", "PATH": "/bin"}
    SystemdNotifier(environ, PID)
    assert environ == {"STATE_DIRECTORY": "/var/lib/x", "PATH": "/bin"}


def test_that_systemd_is_gone_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deaf = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, PID)
    with caplog.at_level(logging.WARNING):
        deaf.notify("READY=1")
        deaf.notify("WATCHDOG=1")
    assert [record.getMessage() for record in caplog.records] == [
        "cannot send READY=1 to systemd at NOTIFY_SOCKET: [Errno 2] No such file or directory"
    ]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"WATCHDOG_USEC": "15000000", "WATCHDOG_PID": str(PID)}, 15.0),
        ({"WATCHDOG_USEC": "15000000"}, 15.0),
        ({"WATCHDOG_USEC": "15000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({}, None),
    ],
)
def test_a_watchdog_is_for_the_process_that_systemd_means(said: dict[str, str], expected: float | None) -> None:
    assert SystemdNotifier(dict(said), PID).watchdog_s == expected


async def test_an_event_loop_that_turns_shows_it_and_one_that_is_stuck_does_not(notified: socket.socket) -> None:
    alive = asyncio.ensure_future(systemd(notified, WATCHDOG_USEC="1000").keep_alive())
    assert [await asyncio.to_thread(received, notified) for _ in range(3)] == ["WATCHDOG=1"] * 3
    notified.setblocking(False)
    with suppress(BlockingIOError):
        while True:  # from here on the loop does not turn
            received(notified)
    notified.settimeout(SEVERAL_SIGNS_S)
    with pytest.raises(TimeoutError):
        received(notified)
    alive.cancel()


async def test_without_a_watchdog_nobody_is_notified() -> None:
    await SystemdNotifier({}, PID).keep_alive()
    await SystemdNotifier({}, PID).report_status(lambda: pytest.fail("nobody listens"))


async def test_a_status_is_sent_when_it_changes(notified: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinatord.runtime.systemd.STATUS_EVERY_S", 0.001)
    texts = iter(["waiting", "waiting", "running", "running"])
    informing = asyncio.ensure_future(systemd(notified).report_status(lambda: next(texts, "done")))
    said = [await asyncio.to_thread(received, notified) for _ in range(3)]
    informing.cancel()
    assert said == ["STATUS=waiting", "STATUS=running", "STATUS=done"]


TAKE = """
import os
from coordinatord.runtime.systemd import SystemdNotifier
here = SystemdNotifier(os.environ, os.getpid())
taken = here.take_sockets()
ports, inherited = [socket.getsockname()[1] for socket in taken], [socket.get_inheritable() for socket in taken]
print(ports, inherited, here.take_sockets())
"""


def take(descriptors: str, count: int, *passed: int) -> subprocess.CompletedProcess[str]:
    """Have a process take its sockets from systemd: from descriptor 3, and by the process's id."""
    shell = f'exec {descriptors}; LISTEN_FDS={count} LISTEN_PID=$$ exec "$@"'
    command = ["bash", "-c", shell, "bash", sys.executable, "-c", TAKE]
    return subprocess.run(command, pass_fds=passed, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_sockets_that_are_passed_are_taken_once_and_are_no_childs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [first.getsockname()[1], second.getsockname()[1]]
        here = first.fileno(), second.fileno()
        done = take(f"5<&{here[0]} 6<&{here[1]} 3<&5 4<&6 5<&- 6<&-", 2, *here)
    assert done.stdout == f"{ports} [False, False] []\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("descriptors", "problem"), [("3<&-", "Bad file descriptor"), ("3</dev/null", "non-socket")])
def test_what_is_no_socket_is_an_error(descriptors: str, problem: str) -> None:
    assert problem in take(descriptors, 1).stderr


@pytest.mark.parametrize(
    "said", [{"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_FDS": "1"}, {"LISTEN_PID": str(PID)}]
)
def test_what_is_passed_to_another_process_is_left_alone(said: dict[str, str]) -> None:
    assert SystemdNotifier(dict(said), PID).take_sockets() == []
