"""What fails, and what then happens: workers, nodeclients, the coordinator."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Coordinator
from tests.support.programs import Program, await_end, kill_quietly, wait_until

pytestmark = pytest.mark.slow

BUDGET = ("--max-restarts", "2")


@pytest.mark.parametrize("signum", [signal.SIGUSR2, signal.SIGKILL], ids=["exits non-zero", "killed -9"])
@pytest.mark.parametrize("rank", [0, 3])
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
    assert cluster.await_state(state="running")["restarts"] == {"used": 1, "max": 2}


@pytest.mark.parametrize(
    ("signum", "code", "words"),
    [(signal.SIGUSR2, 17, "exit code 17"), (signal.SIGKILL, 137, "killed by SIGKILL")],
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


def test_a_command_that_the_kernel_refuses_fails_as_a_worker_does(cluster: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "train"
    program.write_bytes(b"\0 is no program")
    program.chmod(0o755)
    node = cluster.join("a", "--nnodes", "1", command=(str(program),))
    assert node.wait() == 126
    assert f"{program} cannot be started: Exec format error" in node.lines[-1]


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
    assert job["restarts"] == {"used": 0, "max": 2}
    assert [node["node"] for node in job["nodes"]] == after.nodes


def test_a_node_that_comes_back_at_once_under_its_name_is_a_new_one(cluster: Cluster) -> None:
    _, b = cluster.join_all("ab", "--nnodes", "2", script="--mesh")
    before = cluster.await_round(2)
    b.process.kill()
    cluster.join("b", "--nnodes", "2")
    after = cluster.await_round(2, before)
    assert after.nodes == ["a", "b"]
    assert after.restarts == {0}


def test_of_two_nodes_with_one_name_the_older_is_refused(cluster: Cluster) -> None:
    older = cluster.join("a", "--nnodes", "1", "--stop-timeout", "2", script="--family")
    cluster.await_round(1)
    cluster.join("a", "--nnodes", "1")
    assert older.wait() == 77
    assert "another nodeclient with the node id a" in older.lines[-1]
    assert older.leftovers() == []


def test_of_two_nodes_with_one_name_the_younger_gets_the_next_round(cluster: Cluster) -> None:
    cluster.join("a", "--nnodes", "1")
    before = cluster.await_round(1)
    younger = cluster.join("a", "--nnodes", "1")
    younger.await_line("starting round 2: rank 0 of 1")
    assert cluster.await_round(1, before).restarts == {0}


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


def test_a_killed_coordinator_goes_on_where_it_was_and_no_worker_is_touched(
    own_coordinator: Callable[..., Coordinator], tmp_path: Path
) -> None:
    first = own_coordinator(state_dir=tmp_path)
    cluster = Cluster(first, "job")
    try:
        nodes = cluster.join_all("ab", "--nnodes", "2", *BUDGET)
        kill_quietly(cluster.await_round(2).workers[0].pid)
        before = cluster.await_round(2, after=cluster.await_round(2))
        was = first.await_job("job", state="running", round=before.number)
        first.process.kill()
        for node in nodes:
            node.await_line("lost the coordinator: .*; the workers go on")
        second = own_coordinator(port=first.port, state_dir=tmp_path)
        for node in nodes:
            wait_until("another session", lambda node=node: node.output.count("connected to the coordinator") > 1)  # type: ignore[misc]
        now = second.await_job("job", state="running")
        for fact in ("run", "round", "world_size", "restarts", "reason"):
            assert now[fact] == was[fact]
        assert [node["ranks"] for node in now["nodes"]] == [node["ranks"] for node in was["nodes"]]
        cluster.coordinator = second
        before.finish()
        assert [node.wait() for node in nodes] == [0, 0]
        assert max(round_.number for round_ in cluster.rounds()) == before.number
    finally:
        cluster.close()


def test_a_node_that_slept_past_its_lease_ends_its_old_workers_first(
    own_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = own_coordinator("--heartbeat", "0.3")
    cluster = Cluster(coordinator, "job")
    try:
        _, sleeper = cluster.join_all("ab", "--nnodes", "1:2", "--stop-timeout", "1", script="--family")
        before = cluster.await_round(2)
        coordinator.await_job("job", state="running")
        sleeper.signal(signal.SIGSTOP)
        without = cluster.await_round(1, before)
        assert without.nodes == ["a"]
        sleeper.signal(signal.SIGCONT)
        after = cluster.await_round(2, without)
        assert after.nodes == ["a", "b"]
        assert after.restarts == {0}
        stale = before.on("b")[0]
        for pid in (stale.pid, *stale.family):
            await_end(pid)
    finally:
        cluster.close()


def test_a_hung_coordinator_is_noticed_and_the_workers_go_on(own_coordinator: Callable[..., Coordinator]) -> None:
    coordinator = own_coordinator("--heartbeat", "0.3")
    cluster = Cluster(coordinator, "job")
    try:
        a, b = cluster.join_all("ab", "--nnodes", "2")
        before = cluster.await_round(2)
        coordinator.await_job("job", state="running")
        coordinator.signal(signal.SIGSTOP)
        for node in (a, b):
            node.await_line("lost the coordinator: .*the workers go on")
        coordinator.signal(signal.SIGCONT)
        for node in (a, b):
            node.await_line("connected to the coordinator(?!.*round=$)")
        job = coordinator.await_job("job", state="running")
        assert job["round"] == before.number
        assert job["restarts"]["used"] == 0
    finally:
        cluster.close()


def test_the_coordinator_ends_cleanly_with_nodes_connected(own_coordinator: Callable[..., Program]) -> None:
    coordinator = own_coordinator()
    assert isinstance(coordinator, Coordinator)
    cluster = Cluster(coordinator, "job")
    try:
        cluster.join_all("ab", "--nnodes", "2")
        cluster.await_round(2)
        assert coordinator.stop() == 0
        assert "Traceback" not in coordinator.output
    finally:
        cluster.close()
