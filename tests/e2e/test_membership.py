"""Who is in the round after nodes came and went, and which ranks the others keep."""

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import wait_until

pytestmark = pytest.mark.slow


def test_too_few_are_left_and_end_with_the_name_of_who_is_missing(cluster: Cluster) -> None:
    gone = cluster.join("gone", "--nnodes", "3")
    gone.await_line("waiting for nodes")
    rest = cluster.join_all("ab", "--nnodes", "3", "--join-timeout", "8", "--stop-timeout", "5", script="--family")
    cluster.await_round(3)
    gone.process.kill()
    for node in rest:
        assert node.wait() == 75
        assert "not enough nodes within 8 s: waiting for nodes: " in node.lines[-1]
        assert "missing: node" in node.lines[-1]
        assert "gone" in node.lines[-1].partition("missing: ")[2]
        assert node.leftovers() == []
    assert cluster.await_state(state="failed")["nodes"] == []


@pytest.mark.parametrize("moment", ["", "starting round"])
def test_a_nodeclient_that_is_killed_while_it_arrives_is_gone_and_the_others_go_on(
    cluster: Cluster, moment: str
) -> None:
    cluster.join_all("ab", "--nnodes", "2:4", "--max-restarts", "1", script="--mesh")
    before = cluster.await_round(2)
    cluster.await_state(state="running")
    newcomer = cluster.join("c", "--nnodes", "2:4", "--max-restarts", "1", script="--mesh")
    if moment:
        newcomer.await_line(moment)
    newcomer.process.kill()
    newcomer.await_no_leftovers()

    def trains_without() -> bool:
        job = cluster.await_state()
        return job["state"] == "running" and [node["node"] for node in job["nodes"]] == ["a", "b"]

    wait_until("the others to train without it", trains_without)
    last = max((round_ for round_ in cluster.rounds() if len(round_.workers) == 2), key=lambda round_: round_.number)
    assert last.nodes == before.nodes
    assert last.restarts == {0}
    assert cluster.await_state()["restarts"] == {"used": 0, "max": 1, "window_s": None}


def test_nodes_with_different_commands_train_together_and_the_second_user_is_warned(cluster: Cluster) -> None:
    first = cluster.join("a", "--nnodes", "2", script="--mesh")
    first.await_line("waiting for nodes")
    second = cluster.join("b", "--nnodes", "2", script="--mesh --family")
    second.await_line("WARNING .*node b was started with another command than node a, and both are in job")
    assert cluster.await_round(2).nodes == ["a", "b"]
    assert not any("another command" in line for line in first.lines)
