"""The same disaster again and again, at whatever moment it happens to come."""

from __future__ import annotations

import signal

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import await_end, kill_quietly

pytestmark = pytest.mark.slow

ROUNDS = 8
"""So many worker after worker, half as many for all workers at once, and two for whole nodes; `make chaos` goes on."""


def test_worker_after_worker_is_killed_and_each_costs_one_restart(cluster: Cluster) -> None:
    nodes = cluster.join_all("ab", "--nnodes", "2", "--max-restarts", str(ROUNDS), script="--mesh")
    last = cluster.await_round(2)
    for restart in range(1, ROUNDS + 1):
        kill_quietly(last.workers[restart % 2].pid)
        after = cluster.await_round(2, last)
        assert after.number == last.number + 1
        assert after.nodes == ["a", "b"]
        assert after.restarts == {restart}
        for worker in last.workers:
            await_end(worker.pid)
        last = after
    kill_quietly(last.workers[0].pid, signal.SIGKILL)
    assert all(node.wait() in {1, 137} for node in nodes)
    assert [node.leftovers() for node in nodes] == [[], []]


def test_all_workers_at_once_are_killed_and_the_budget_is_charged_once(cluster: Cluster) -> None:
    cluster.join_all("ab", "--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "100", script="--mesh")
    last = cluster.await_round(4)
    for restart in range(1, ROUNDS // 2 + 1):
        for worker in last.workers:
            kill_quietly(worker.pid)
        last = cluster.await_round(4, last)
        assert last.restarts == {restart}


def test_node_after_node_is_killed_and_replaced_and_nothing_is_charged(cluster: Cluster) -> None:
    flags = ("--nnodes", "2:3", "--max-restarts", "1")
    nodes = {node.name: node for node in cluster.join_all("abc", *flags, script="--mesh")}
    last = cluster.await_round(3)
    for number in range(ROUNDS // 4):
        victim = nodes.pop(last.nodes[number % 3])
        victim.process.kill()
        newcomer = cluster.join(f"new{number}", *flags, script="--mesh")
        nodes[newcomer.name] = newcomer
        last = cluster.await_round(3, last)
        assert set(last.nodes) == set(nodes)
        assert last.restarts == {0}
        victim.await_no_leftovers()


def test_a_node_and_a_worker_die_together(cluster: Cluster) -> None:
    flags = ("--nnodes", "1:2", "--max-restarts", "100")
    repeats = 3  # each takes the second that a closed connection has to come back, before the root cause is judged
    _, victim = cluster.join_all("ab", *flags, script="--mesh")
    last = cluster.await_round(2)
    for _ in range(repeats):
        [worker] = last.on("a")
        kill_quietly(worker.pid)
        victim.process.kill()
        victim.await_no_leftovers()
        last = cluster.await_round(1, last)
        victim = cluster.join("b", *flags, script="--mesh")
        last = cluster.await_round(2, last)
    assert cluster.await_state(state="running")["restarts"]["used"] == 0


def test_nodes_that_leave_while_a_round_starts_leave(cluster: Cluster) -> None:
    flags = ("--nnodes", "1:3")
    steady = cluster.join("steady", *flags)
    for number in range(ROUNDS // 4):
        guest = cluster.join(f"guest{number}", *flags)
        guest.await_line("starting round")
        assert guest.stop() == 143
        assert guest.leftovers() == []
    assert steady.process.poll() is None
    assert cluster.await_state(state="running", world_size=1)["restarts"]["used"] == 0
