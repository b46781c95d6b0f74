"""What a person sees of a node: on a terminal one live line, otherwise log lines."""

from __future__ import annotations

import os
import pty
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.cluster import Cluster, Coordinator
from tests.support.programs import BIN, Program, kill_quietly, wait_until

pytestmark = pytest.mark.slow

JOIN_B = (BIN / "nodeclient", "join", "--job-id", "job", "--nnodes", "3", "--node-id", "b")


@contextmanager
def on_a_terminal(coordinator: Coordinator, job: str, *flags: str) -> Iterator[tuple[Program, int]]:
    """Start node a on a terminal; yield it and the terminal's other end, to be closed by the test."""
    controller, terminal = pty.openpty()
    join = (BIN / "nodeclient", "join", "--coord", coordinator.endpoint, "--job-id", job, "--node-id", "a")
    node = Program(*join, *flags, "--", "true", stderr=terminal)
    os.close(terminal)
    try:
        yield node, controller
    finally:
        node.close()


def read_terminal(controller: int, wanted: str) -> str:
    """Read what a program draws on its terminal until it has drawn `wanted`."""
    drawn = b""

    def look() -> bool:
        nonlocal drawn
        drawn += os.read(controller, 65_536)
        return wanted.encode() in drawn

    wait_until(f"{wanted!r} on the terminal", look)
    return drawn.decode()


def test_on_a_terminal_one_live_line_counts_down(cluster: Cluster) -> None:
    flags = ("--nnodes", "2", "--join-timeout", "100")
    with on_a_terminal(cluster.coordinator, cluster.job, *flags) as (node, controller):
        drawn = read_terminal(controller, "waiting for nodes: 1 of 2 joined (node a) (1 min 40 s left)")
        assert "\r\x1b[Kwaiting" in drawn
        again = read_terminal(controller, "(1 min 39 s left)")
        assert "\n" not in again
        node.signal(signal.SIGTERM)
        last = read_terminal(controller, "left the job")
        assert "\r\x1b[K" in last, "the live line is erased before a log line"
        assert node.wait() == 143
        os.close(controller)


def test_a_node_whose_terminal_has_gone_goes_on(own_coordinator: Callable[..., Coordinator]) -> None:
    coordinator = own_coordinator("--heartbeat", "0.3")

    def silence() -> float:
        [seen] = [node["last_seen_s"] for node in nodes() if node["node"] == "a"]
        return float(seen)

    def nodes() -> list[Any]:
        return list(coordinator.await_job("job")["nodes"])

    with on_a_terminal(coordinator, "job", "--nnodes", "3") as (node, controller):
        read_terminal(controller, "1 of 3 joined")
        os.close(controller)
        others = [Program(*JOIN_B, "--coord", coordinator.endpoint, "--", "true")]
        try:
            others[0].await_line("2 of 3 joined")
            for _ in range(3):  # heartbeats, whose answers bring words for the terminal
                wait_until("a heartbeat of a", lambda: silence() < 0.1)
                wait_until("a pause of a", lambda: silence() > 0.15)
            others.append(Program(*JOIN_B, "--node-id", "c", "--coord", coordinator.endpoint, "--", "true"))
            assert [program.wait() for program in (node, *others)] == [0, 0, 0]
        finally:
            for program in others:
                program.close()


def test_off_a_terminal_a_wait_is_one_log_line_a_change(cluster: Cluster) -> None:
    first = cluster.join("a", "--nnodes", "3")
    first.await_line(r"waiting for nodes: 1 of 3 joined \(node a\) \(for at most 600 s\)")
    cluster.join("b", "--nnodes", "3")
    first.await_line(r"waiting for nodes: 2 of 3 joined")
    cluster.join("c", "--nnodes", "3")
    last = cluster.await_round(3)
    assert "\x1b" not in first.output
    assert len([line for line in first.lines if "waiting for nodes" in line]) == 2
    for worker in last.workers:
        kill_quietly(worker.pid, signal.SIGUSR1)
    assert first.wait() == 0


def test_every_log_line_names_job_node_and_round(cluster: Cluster) -> None:
    node = cluster.join("a", "--nnodes", "1")
    last = cluster.await_round(1)
    kill_quietly(last.workers[0].pid, signal.SIGUSR1)
    assert node.wait() == 0
    for line in node.lines:
        if not line.startswith("{"):
            assert f"job={cluster.job}" in line
            assert "node=a" in line
    assert node.lines[-1].endswith("round=1")
