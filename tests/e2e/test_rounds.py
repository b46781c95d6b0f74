"""The life of a job in which nothing breaks: elastic start, arrival, spares, leaving, success, the next run."""

import signal

import pytest

from tests.support.cluster import Cluster

pytestmark = pytest.mark.slow


def test_a_job_of_all_nodes_starts_at_once_and_success_ends_every_nodeclient(cluster: Cluster) -> None:
    nodes = cluster.join_all("abc", "--nnodes", "3", "--nproc-per-node", "2")
    first = cluster.await_round(6)
    assert first.nodes == ["a", "b", "c"]
    assert [worker.local_rank for worker in first.workers] == [0, 1] * 3
    assert {worker.address for worker in first.workers} == {"127.0.0.1"}
    assert len({worker.port for worker in first.workers}) == 1
    first.finish()
    assert [node.wait() for node in nodes] == [0, 0, 0]
    assert [node.leftovers() for node in nodes] == [[], [], []]
    assert cluster.await_state(state="succeeded")["round"] == first.number


def test_workers_get_time_to_save_when_a_node_arrives(cluster: Cluster) -> None:
    a, b = cluster.join_all("ab", "--nnodes", "2:3", "--max-restarts", "1")
    before = cluster.await_round(2)
    cluster.join("c", "--nnodes", "2:3", "--max-restarts", "1")
    after = cluster.await_round(3, before)
    assert after.nodes == ["a", "b", "c"]
    assert after.restarts == {0}
    for node in (a, b):
        assert node.await_event("saved")["round"] == before.number


def test_a_node_that_leaves_saves_and_the_others_go_on_without_it(cluster: Cluster) -> None:
    _, b = cluster.join_all("ab", "--nnodes", "1:2")
    before = cluster.await_round(2)
    assert b.stop() == 143
    b.await_event("saved", round=before.number)
    assert b.leftovers() == []
    after = cluster.await_round(1, before)
    assert after.nodes == ["a"]
    assert after.restarts == {0}


def test_a_second_signal_leaves_at_once(cluster: Cluster) -> None:
    only = cluster.join("a", "--nnodes", "1", "--stop-timeout", "1000", script="--deaf --family")
    cluster.await_round(1)
    only.signal(signal.SIGTERM)
    only.await_line("SIGTERM: leaving; .*a second signal kills them")
    only.signal(signal.SIGINT)
    assert only.wait() == 130
    assert only.leftovers() == []
