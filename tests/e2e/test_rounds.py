"""The life of a job: elastic start, arrival, leaving and success; and what fails, and what then happens."""

import signal
import sys
from collections.abc import Sequence

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import await_end, kill_quietly

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


BUDGET = ("--max-restarts", "2")


def test_a_killed_worker_stops_all_and_the_same_nodes_go_on(cluster: Cluster) -> None:
    nodes = cluster.join_all("ab", "--nnodes", "2", "--nproc-per-node", "2", *BUDGET, script="--family --mesh")
    before = cluster.await_round(4)
    kill_quietly(before.workers[3].pid)
    after = cluster.await_round(4, before)
    assert after.number == before.number + 1
    assert after.nodes == before.nodes
    assert after.restarts == {1}
    for worker in before.workers:
        for pid in (worker.pid, *worker.family):
            await_end(pid)
    for node in nodes:
        node.await_no_zombies()
    assert cluster.await_state(state="running")["restarts"] == {"used": 1, "max": 2, "window_s": None}


def test_the_killed_nodeclient_of_rank_0_takes_its_workers_along_and_the_others_go_on(cluster: Cluster) -> None:
    nodes = cluster.join_all("abc", "--nnodes", "2:3", *BUDGET, script="--family --mesh")
    before = cluster.await_round(3)
    gone = nodes[0]
    gone.process.kill()
    gone.await_no_leftovers()
    after = cluster.await_round(2, before)
    assert after.nodes == [name for name in before.nodes if name != gone.name]
    assert after.restarts == {0}
    job = cluster.await_state(state="running")
    assert job["restarts"] == {"used": 0, "max": 2, "window_s": None}
    assert [node["node"] for node in job["nodes"]] == after.nodes


@pytest.mark.parametrize(
    ("flags", "kept", "error"),
    [
        ((), "x=object()", "x is a object, which"),
        (("--preload", "torch,numpy"), "x={'y': [object()]}", "x.y[0] is a builtins.object, which"),
    ],
    ids=["cold", "warm"],
)
def test_what_can_never_be_kept_ends_the_run_in_its_first_round(
    cluster: Cluster, flags: Sequence[str], kept: str, error: str
) -> None:
    program = f"import workerlib\nworkerlib.init().keep({kept})"
    node = cluster.join("a", "--nnodes", "1", "--max-restarts", "3", *flags, command=(sys.executable, "-c", program))
    assert node.wait() == 1
    assert error in node.lines[-1]
    assert "(no restart mends this error)" in node.lines[-1]
    assert sum("starting round" in line for line in node.lines) == 1


def test_a_guard_that_is_killed_while_workers_run_is_replaced_at_once(cluster: Cluster) -> None:
    node = cluster.join("a", "--nnodes", "1")
    [worker] = cluster.await_round(1).workers
    [guard] = set(node.leftovers()) - {worker.pid}
    kill_quietly(guard)
    node.await_line("the guard, which ends the workers .* has ended .*: another one takes its place")
