"""A worker that fails while coordinatord is away: that is known when it is back."""

import signal
from collections.abc import Callable

import pytest

from tests.support.cluster import Cluster
from tests.support.lives import Lives
from tests.support.programs import kill_quietly

pytestmark = pytest.mark.slow


def test_a_worker_that_fails_meanwhile_is_reported_and_charged_once(
    make_lives: Callable[..., Lives], make_cluster: Callable[[Lives], Cluster]
) -> None:
    lives = make_lives()
    cluster = make_cluster(lives)
    nodes = cluster.join_all("ab", "--nnodes", "2", "--max-restarts", "3")
    begun = cluster.await_round(2)
    cluster.await_state(state="running")
    lives.kill()
    for node in nodes:
        node.await_line("lost the coordinator: .*; the workers go on")
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
    assert job["restarts"] == {"used": 1, "max": 3, "window_s": None}
