"""Two coordinators over one etcd: whatever happens to the one that leads, no worker restarts and no rank changes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nodeclient.host.ports import PortReservation
from tests.support.cluster import QUICK, STDLIB_PYTHON, WORKER, Node
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.programs import BIN, Program, clean_environ, run, wait_until

pytestmark = [pytest.mark.slow, needs_etcd]

LEADS = "this coordinator leads"


class Pair:
    """Two coordinators at one namespace of an etcd, and the nodes of one job."""

    def __init__(self, stack: ExitStack, folder: Path, members: int = 1) -> None:
        """Start etcd and both coordinators; the first one leads."""
        self.etcd = EtcdCluster(folder / "etcd", members)
        stack.callback(self.etcd.close)
        self.etcd.await_serving()
        self.store = str(self.etcd.place("pair"))
        self._folder = folder
        self._stack = stack
        reservations = [PortReservation(), PortReservation()]
        for one in reservations:
            stack.callback(one.close)
        self._ports = [one.port for one in reservations]
        self.coord = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self.nodes: list[Node] = []
        self.coordinators = [self._start(0)]
        self.coordinators[0].await_line(LEADS)
        self.coordinators.append(self._start(1))
        self.coordinators[1].await_line(r"stands by: 127\.0\.0\.1:\d+ leads")

    def _start(self, place: int) -> Program:
        port = str(self._ports[place])
        where = ("--host", "127.0.0.1", "--port", port, "--advertise", f"127.0.0.1:{port}", "--insecure")
        kept = ("--store", self.store, "--state-dir", str(self._folder / f"state-{place}"))
        environ = clean_environ(COORDINATORD_RETRY_PAUSE="0")
        program = Program(BIN / "coordinatord", *where, *kept, *QUICK, environ=environ)
        self._stack.callback(program.close)
        return program

    def start(self, place: int) -> None:
        """Start one of them again."""
        self.coordinators[place] = self._start(place)

    def join(self, name: str) -> Node:
        """Start a node."""
        flags = ("--nnodes", "2", "--insecure")
        node = Node(name, "job", self.coord, flags, (*STDLIB_PYTHON, str(WORKER)), (), clean_environ())
        self._stack.callback(node.close)
        self.nodes.append(node)
        return node

    def await_running(self) -> None:
        """Wait until the job runs on both nodes, by the account of whoever leads."""

        def look() -> bool:
            asked = run(BIN / "nodeclient", "status", "--coord", self.coord, "--insecure", "job")
            return asked.returncode == 0 and asked.stdout.count("running") >= 3 and "disconnected" not in asked.stdout

        wait_until("the job to run", look)

    def finish(self) -> None:
        """Let the workers of the first round succeed; there must have been no other round."""
        for node in self.nodes:
            started = [event for event in node.events if event["event"] == "started"]
            assert [event["round"] for event in started] == [1], node.output
            os.kill(started[0]["pid"], signal.SIGUSR1)
        assert [node.wait() for node in self.nodes] == [0, 0]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Close everything in the end."""
    with ExitStack() as held:
        yield held


@pytest.fixture
def pair(request: pytest.FixtureRequest, stack: ExitStack, tmp_path: Path) -> Pair:
    """Start two coordinators over one member of etcd, or as many as a test wants, and a job on two nodes."""
    pair = Pair(stack, tmp_path, getattr(request, "param", 1))
    for name in "ab":
        pair.join(name)
    pair.await_running()
    return pair


def test_a_leader_that_is_killed_is_followed_by_the_standby(pair: Pair) -> None:
    first, second = pair.coordinators
    first.process.kill()
    first.wait()
    second.await_line(LEADS)
    pair.await_running()
    pair.start(0)
    pair.coordinators[0].await_line("stands by")
    pair.finish()


def test_a_leader_that_ends_is_followed_at_once(pair: Pair) -> None:
    first, second = pair.coordinators
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    second.await_line(LEADS)
    pair.await_running()
    pair.finish()


def test_a_leader_that_is_told_to_steps_down_and_stands_by(pair: Pair) -> None:
    first, second = pair.coordinators
    ended = run(BIN / "coordinatord", "--store", pair.store, "--step-down")
    assert (ended.returncode, ended.stdout.count("leads no more")) == (0, 1), ended.stderr
    second.await_line(LEADS)
    first.await_line("the leader key is gone")
    first.await_line("stands by: ")
    pair.await_running()
    pair.finish()


def test_a_leader_that_was_paused_says_nothing_once_it_goes_on(pair: Pair) -> None:
    first, second = pair.coordinators
    first.signal(signal.SIGSTOP)
    second.await_line(LEADS)
    pair.await_running()
    first.signal(signal.SIGCONT)
    first.await_line("stands by: ")
    pair.await_running()
    pair.finish()


@pytest.mark.parametrize("pair", [3], indirect=True)
def test_of_three_members_of_etcd_one_may_die_and_of_two_nobody_leads(pair: Pair) -> None:
    pair.etcd.kill(0)
    pair.await_running()
    assert not any("leads no more" in line or "stands by" in line for line in pair.coordinators[0].lines)
    pair.etcd.kill(1)
    pair.coordinators[0].await_line("it is not known who leads")
    pair.etcd.start(0)
    pair.await_running()
    pair.finish()


def test_without_etcd_jobs_run_on_and_go_on_with_it(pair: Pair) -> None:
    pair.etcd.kill(0)
    for coordinator in pair.coordinators:
        coordinator.await_line("it is not known who leads")
    pair.etcd.start(0)
    wait_until(
        "one to lead again",
        lambda: sum(sum(LEADS in line for line in one.lines) for one in pair.coordinators) >= 2,
    )
    pair.await_running()
    pair.finish()
