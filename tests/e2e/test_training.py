"""Real training with gloo through what may happen to it; other tests cover what needs no torch."""

from __future__ import annotations

import signal

import pytest

from tests.support.cluster import TRAINING, Cluster
from tests.support.programs import BIN, Program, kill_quietly

pytestmark = pytest.mark.slow

WARM = ("--preload", "torch.distributed")
"""Flags where nodes have several rounds: each of them imports torch once, which takes two seconds. Others start
cold."""


def test_training_goes_on_after_a_lost_node_for_free_and_after_a_killed_worker_for_one_restart(
    cluster: Cluster,
) -> None:
    flags = ("--nnodes", "2:3", "--max-restarts", "1", *WARM)
    a, b, c = (cluster.join(name, *flags, command=TRAINING) for name in "abc")
    begun = a.await_event("sum", sum=3)["round"]

    c.process.kill()
    a.await_event("sum", sum=2, round=begun + 1)
    assert cluster.await_state(round=begun + 1)["restarts"] == {"used": 0, "max": 1}
    victim = b.await_event("sum", sum=2, round=begun + 1)

    kill_quietly(victim["pid"])
    rank_0 = next(event for node in (a, b) if (event := node.await_event("sum", sum=2, round=begun + 2))["rank"] == 0)
    assert cluster.await_state(round=begun + 2)["restarts"] == {"used": 1, "max": 1}

    kill_quietly(rank_0["pid"], signal.SIGUSR1)
    assert (a.wait(), b.wait()) == (0, 0)


@pytest.mark.long
def test_training_goes_on_without_the_node_of_rank_0(cluster: Cluster) -> None:
    nodes = [cluster.join(name, "--nnodes", "1:2", command=TRAINING) for name in "ab"]
    first, second = sorted(nodes, key=lambda node: node.await_event("sum", sum=2)["rank"])
    begun = first.await_event("sum", sum=2)["round"]
    first.process.kill()
    survivor = second.await_event("sum", sum=1, round=begun + 1)
    assert survivor["rank"] == 0
    kill_quietly(survivor["pid"], signal.SIGUSR1)
    assert second.wait() == 0
    assert cluster.await_state(state="succeeded")["restarts"]["used"] == 0


@pytest.mark.long
def test_training_goes_on_with_a_spare_after_a_leave_and_when_there_are_enough_again(cluster: Cluster) -> None:
    flags = ("--nnodes", "2", *WARM)
    a, b = (cluster.join(name, *flags, command=TRAINING) for name in "ab")
    assert a.await_event("sum", sum=2)["rank"] == 0
    c = cluster.join("c", *flags, command=TRAINING)
    c.await_line("spare: round 1 has its maximum of nodes")

    a.process.kill()
    assert c.await_event("sum", sum=2, round=2)["rank"] == 0, "it takes the rank of the node that it replaces"
    assert b.await_event("sum", sum=2, round=2)["rank"] == 1

    b.signal(signal.SIGTERM)
    assert b.wait() == 143
    c.await_line("waiting for nodes: 1 of 2 joined .*missing: node b")
    assert cluster.await_state(state="forming")["round"] == 2

    d = cluster.join("d", *flags, command=TRAINING)
    d.await_event("sum", sum=2, round=3)
    rank_0 = c.await_event("sum", sum=2, round=3)
    assert rank_0["rank"] == 0
    kill_quietly(rank_0["pid"], signal.SIGUSR1)
    assert (c.wait(), d.wait()) == (0, 0)
    assert cluster.await_state(state="succeeded")["restarts"]["used"] == 0


def test_one_host_alone_needs_no_coordinator_and_no_port() -> None:
    node = Program(BIN / "nodeclient", "join", "--standalone", "--nproc-per-node", "2", "--", *TRAINING)
    try:
        pid = node.await_line(r'"event": "sum", "rank": 0, "pid": (\d+).*"sum": 2')[1]
        kill_quietly(int(pid), signal.SIGUSR1)
        assert node.wait() == 0
        assert node.leftovers() == []
    finally:
        node.close()
