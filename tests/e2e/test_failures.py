"""What fails, and what then happens: workers, nodeclients, the coordinator."""

import signal

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import await_end, kill_quietly, wait_until

pytestmark = pytest.mark.slow

BUDGET = ("--max-restarts", "2")


@pytest.mark.parametrize(
    ("rank", "signum"), [pytest.param(0, signal.SIGUSR2, marks=pytest.mark.long), (3, signal.SIGKILL)]
)
def test_a_failed_worker_stops_all_and_the_same_nodes_go_on(
    cluster: Cluster, rank: int, signum: signal.Signals
) -> None:
    nodes = cluster.join_all("ab", "--nnodes", "2", "--nproc-per-node", "2", *BUDGET, script="--family --mesh")
    before = cluster.await_round(4)
    kill_quietly(before.workers[rank].pid, signum)
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


@pytest.mark.parametrize(
    ("signum", "code", "words"), [(signal.SIGUSR2, 17, "exit code 17"), (signal.SIGKILL, 137, "killed by SIGKILL")]
)
def test_an_exhausted_budget_ends_all_with_the_code_of_the_root_cause(
    cluster: Cluster, signum: signal.Signals, code: int, words: str
) -> None:
    nodes = cluster.join_all("ab", "--nnodes", "2", "--max-restarts", "1")
    before = cluster.await_round(2)
    kill_quietly(before.workers[1].pid, signum)
    after = cluster.await_round(2, before)
    kill_quietly(after.workers[1].pid, signum)
    assert [node.wait() for node in nodes] == [code, code]
    for node in nodes:
        assert "rank 1 on node " in node.lines[-1]
        assert words in node.lines[-1]
        assert "restarts used: 1 of 1" in node.lines[-1]
        assert node.leftovers() == []


@pytest.mark.parametrize("victim", [0, 1], ids=["rank 0's node", "another node"])
def test_a_killed_nodeclient_takes_its_workers_along_and_the_others_go_on(cluster: Cluster, victim: int) -> None:
    nodes = cluster.join_all("abc", "--nnodes", "2:3", *BUDGET, script="--family --mesh")
    before = cluster.await_round(3)
    gone = nodes[victim]
    gone.process.kill()
    gone.await_no_leftovers()
    after = cluster.await_round(2, before)
    assert after.nodes == [name for name in before.nodes if name != gone.name]
    assert after.restarts == {0}
    job = cluster.await_state(state="running")
    assert job["restarts"] == {"used": 0, "max": 2, "window_s": None}
    assert [node["node"] for node in job["nodes"]] == after.nodes


def test_of_two_nodes_with_one_name_the_older_is_refused(cluster: Cluster) -> None:
    older = cluster.join("a", "--nnodes", "1", "--stop-timeout", "2", script="--family")
    cluster.await_round(1)
    cluster.join("a", "--nnodes", "1")
    assert older.wait() == 77
    assert "another nodeclient with the node id a" in older.lines[-1]
    assert older.leftovers() == []


def test_workers_that_ignore_sigterm_do_not_delay_the_next_round(cluster: Cluster) -> None:
    cluster.join_all("ab", "--nnodes", "2", "--stop-timeout", "1000", *BUDGET, script="--deaf --family")
    before = cluster.await_round(2)
    kill_quietly(before.workers[0].pid)
    assert cluster.await_round(2, before).restarts == {1}


def test_a_worker_group_that_loses_its_guard_goes_on(cluster: Cluster) -> None:
    node = cluster.join("a", "--nnodes", "1", *BUDGET, script="--family")
    before = cluster.await_round(1)
    known = {before.workers[0].pid, *before.workers[0].family}
    [guard] = set(node.leftovers()) - known
    kill_quietly(guard)
    node.await_line("the guard, which ends the workers .* has ended .*: another one takes its place")
    wait_until("another guard", lambda: set(node.leftovers()) - known - {guard})
    node.process.kill()
    node.await_no_leftovers()


def test_a_worker_group_that_lost_its_guard_has_one_in_the_next_round(cluster: Cluster) -> None:
    node = cluster.join("a", "--nnodes", "1", *BUDGET, script="--family")
    before = cluster.await_round(1)
    known = {before.workers[0].pid, *before.workers[0].family}
    [guard] = set(node.leftovers()) - known
    kill_quietly(guard)
    kill_quietly(before.workers[0].pid)
    cluster.await_round(1, before)
    node.process.kill()
    node.await_no_leftovers()
