"""What happens while coordinatord is away is known when it is back: a failure, a success, a node that is gone."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from tests.support.cluster import Cluster, Node, Round
from tests.support.lives import Lives
from tests.support.programs import kill_quietly

pytestmark = pytest.mark.slow

AWAY = "lost the coordinator: .*; the workers go on"


@dataclass
class Outage:
    """A job whose round runs, and whose coordinatord was killed then: each of its nodes knows it."""

    lives: Lives
    cluster: Cluster
    nodes: list[Node]
    begun: Round


@pytest.fixture
def begin_outage(make_lives: Callable[..., Lives], make_cluster: Callable[[Lives], Cluster]) -> Callable[..., Outage]:
    """Let nodes run a round, each named by one letter, and kill coordinatord; `serve` are its flags."""

    def begin(names: str, *flags: str, script: str = "", serve: Sequence[str] = ()) -> Outage:
        lives = make_lives(*serve)
        cluster = make_cluster(lives)
        nodes = cluster.join_all(names, *flags, script=script)
        begun = cluster.await_round(len(names))
        cluster.await_state(state="running")
        lives.kill()
        for node in nodes:
            node.await_line(AWAY)
        return Outage(lives, cluster, nodes, begun)

    return begin


def test_a_worker_that_fails_meanwhile_is_reported_and_charged_once(begin_outage: Callable[..., Outage]) -> None:
    outage = begin_outage("ab", "--nnodes", "2", "--max-restarts", "3")
    [victim] = outage.begun.on("b")
    kill_quietly(victim.pid, signal.SIGUSR2)
    outage.nodes[1].await_line("worker of rank 1 failed: exit code 17")
    outage.lives.start()

    after = outage.cluster.await_round(2, after=outage.begun)
    assert after.number == outage.begun.number + 1
    assert after.nodes == outage.begun.nodes
    assert after.restarts == {1}
    assert "rank 1" in after.workers[0].reason

    # It is charged once, also if the next death comes before any node has reported anything new.
    outage.lives.kill()
    outage.lives.start()
    job = outage.cluster.await_state(state="running", round=after.number)
    assert job["restarts"] == {"used": 1, "max": 3, "window_s": None}


@pytest.mark.long
@pytest.mark.parametrize("finished", ["a", "ab"], ids=["one node", "all nodes"])
def test_what_finishes_meanwhile_is_finished(begin_outage: Callable[..., Outage], finished: str) -> None:
    outage = begin_outage("ab", "--nnodes", "2")
    for name in finished:
        [worker] = outage.begun.on(name)
        kill_quietly(worker.pid, signal.SIGUSR1)
    for node in outage.nodes[: len(finished)]:
        node.await_line("all workers of this node succeeded")
    outage.lives.start()
    for name in "ab"[len(finished) :]:
        outage.cluster.await_state(state="running", round=outage.begun.number)
        [worker] = outage.begun.on(name)
        kill_quietly(worker.pid, signal.SIGUSR1)
    assert [node.wait() for node in outage.nodes] == [0, 0]
    outage.cluster.await_state(state="succeeded", round=outage.begun.number)
    assert len(list(outage.cluster.rounds())) == 1


def test_the_only_node_of_a_round_knows_that_the_job_is_done(begin_outage: Callable[..., Outage]) -> None:
    outage = begin_outage("a", "--nnodes", "1", "--join-timeout", "5")
    [node] = outage.nodes
    outage.begun.finish()
    assert node.wait() == 0
    assert "this node was the only one of its round: the job is done" in node.lines[-1]


def test_when_the_outage_grace_is_over_workers_have_the_time_to_save(begin_outage: Callable[..., Outage]) -> None:
    flags = ("--nnodes", "1", "--stop-timeout", "1", "--join-timeout", "5")
    outage = begin_outage("a", *flags, script="--deaf", serve=("--outage-grace", "0.5"))
    [node] = outage.nodes
    node.await_line("out of touch with the coordinator for 0.5 s: .* its workers stop and get up to 1 s to save")
    node.await_line("rank 0 did not end within 1 s and was killed")
    assert node.wait() == 69
