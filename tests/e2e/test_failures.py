"""What fails, and what then happens: workers, nodeclients, the coordinator."""

import sys
from collections.abc import Sequence

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import await_end, kill_quietly

pytestmark = pytest.mark.slow

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


def test_an_exhausted_budget_ends_all_with_the_code_of_the_root_cause(cluster: Cluster) -> None:
    nodes = cluster.join_all("ab", "--nnodes", "2", "--max-restarts", "1")
    before = cluster.await_round(2)
    kill_quietly(before.workers[1].pid)
    after = cluster.await_round(2, before)
    kill_quietly(after.workers[1].pid)
    assert [node.wait() for node in nodes] == [137, 137]
    for node in nodes:
        assert "rank 1 on node " in node.lines[-1]
        assert "killed by SIGKILL" in node.lines[-1]
        assert "restarts used: 1 of 1" in node.lines[-1]
        assert node.leftovers() == []


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
