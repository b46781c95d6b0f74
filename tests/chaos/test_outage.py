"""What happens while coordinatord is away is known when it is back: a failure, a success, a node that is gone."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.support.cluster import Cluster, Node
from tests.support.lives import Lives
from tests.support.programs import kill_quietly

pytestmark = pytest.mark.slow

AWAY = "lost the coordinator: .*; the workers go on"


def kill_coordinator(lives: Lives, nodes: list[Node]) -> None:
    """Kill coordinatord, and wait until each node knows it."""
    lives.kill()
    for node in nodes:
        node.await_line(AWAY)


def test_a_worker_that_fails_meanwhile_is_reported_and_charged_once(
    make_lives: Callable[..., Lives], make_cluster: Callable[[Lives], Cluster]
) -> None:
    lives = make_lives()
    cluster = make_cluster(lives)
    nodes = cluster.join_all("ab", "--nnodes", "2", "--max-restarts", "3")
    begun = cluster.await_round(2)
    cluster.await_state(state="running")

    kill_coordinator(lives, nodes)
    [victim] = begun.on("b")
    kill_quietly(victim.pid, signal.SIGUSR2)
    nodes[1].await_line("worker of rank 1 failed: exit code 17")
    lives.start()

    after = cluster.await_round(2, after=begun)
    assert after.number == begun.number + 1
    assert after.nodes == begun.nodes
    assert after.restarts == {1}
    assert "rank 1" in after.workers[0].reason

    # It is charged once, also if the next death comes before any node has reported anything new.
    lives.kill()
    lives.start()
    job = cluster.await_state(state="running", round=after.number)
    assert job["restarts"] == {"used": 1, "max": 3}


def test_a_failure_meanwhile_that_the_budget_does_not_bear_ends_the_run(
    make_lives: Callable[..., Lives], make_cluster: Callable[[Lives], Cluster]
) -> None:
    lives = make_lives()
    cluster = make_cluster(lives)
    nodes = cluster.join_all("ab", "--nnodes", "2")
    begun = cluster.await_round(2)
    cluster.await_state(state="running")

    kill_coordinator(lives, nodes)
    kill_quietly(begun.workers[0].pid, signal.SIGUSR2)
    nodes[0].await_line("worker of rank 0 failed: exit code 17")
    lives.start()
    assert [node.wait() for node in nodes] == [17, 17]
    cluster.await_state(state="failed", round=begun.number)


@pytest.mark.parametrize("finished", ["a", "ab"], ids=["one node", "all nodes"])
def test_what_finishes_meanwhile_is_finished(
    make_lives: Callable[..., Lives], make_cluster: Callable[[Lives], Cluster], finished: str
) -> None:
    lives = make_lives()
    cluster = make_cluster(lives)
    nodes = cluster.join_all("ab", "--nnodes", "2")
    begun = cluster.await_round(2)
    cluster.await_state(state="running")

    kill_coordinator(lives, nodes)
    for name in finished:
        [worker] = begun.on(name)
        kill_quietly(worker.pid, signal.SIGUSR1)
    for node in nodes[: len(finished)]:
        node.await_line("all workers of this node succeeded")
    lives.start()
    for name in "ab"[len(finished) :]:
        cluster.await_state(state="running", round=begun.number)
        [worker] = begun.on(name)
        kill_quietly(worker.pid, signal.SIGUSR1)
    assert [node.wait() for node in nodes] == [0, 0]
    cluster.await_state(state="succeeded", round=begun.number)
    assert len(list(cluster.rounds())) == 1


def test_the_only_node_of_a_round_knows_that_the_job_is_done(
    make_lives: Callable[..., Lives], make_cluster: Callable[[Lives], Cluster]
) -> None:
    lives = make_lives()
    cluster = make_cluster(lives)
    node = cluster.join("a", "--nnodes", "1", "--join-timeout", "5")
    begun = cluster.await_round(1)
    cluster.await_state(state="running")

    kill_coordinator(lives, [node])
    begun.finish()
    assert node.wait() == 0
    assert "this node was the only one of its round: the job is done" in node.lines[-1]


def test_when_the_outage_grace_is_over_workers_have_the_time_to_save(
    make_lives: Callable[..., Lives], make_cluster: Callable[[Lives], Cluster]
) -> None:
    lives = make_lives("--outage-grace", "0.5")
    cluster = make_cluster(lives)
    node = cluster.join("a", "--nnodes", "1", "--stop-timeout", "1", "--join-timeout", "5", script="--deaf")
    cluster.await_round(1)
    cluster.await_state(state="running")

    kill_coordinator(lives, [node])
    node.await_line("out of touch with the coordinator for 0.5 s: .* its workers stop and get up to 1 s to save")
    node.await_line("rank 0 did not end within 1 s of SIGTERM and was killed")
    assert node.wait() == 69


def test_a_node_that_does_not_come_back_is_lost_in_the_ordinary_way(
    make_lives: Callable[..., Lives], make_cluster: Callable[[Lives], Cluster]
) -> None:
    lives = make_lives()
    cluster = make_cluster(lives)
    nodes = cluster.join_all("ab", "--nnodes", "1:2", "--max-restarts", "1")
    begun = cluster.await_round(2)
    cluster.await_state(state="running")

    kill_coordinator(lives, nodes)
    nodes[1].signal(signal.SIGKILL)
    nodes[1].wait()
    lives.start()
    after = cluster.await_round(1, after=begun)
    assert after.nodes == ["a"]
    assert after.number == begun.number + 1
    assert after.restarts == {0}
