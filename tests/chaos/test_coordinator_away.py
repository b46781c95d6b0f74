"""coordinatord is killed with -9, or stands still: its nodes wait, and it learns later what has happened meanwhile.

The long form, with gloo and with random moments, is `benchmarks/chaos.py`.
"""

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.lives import FleetProgram, Lives, MemberState, await_back
from tests.support.programs import kill_quietly, wait_until

pytestmark = pytest.mark.slow

KILLS = 4

FLEET = 40

SHORT = ("--heartbeat", "0.2")
"""A lease lasts 1 s."""

STOPPED_S = 3.0
"""Three leases."""


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Iterator[Lives]:
    """Yield a coordinatord with a short lease, and let it go on at the end."""
    running = make_lives(*SHORT)
    yield running
    running.now.signal(signal.SIGCONT)


def test_no_worker_restarts_and_round_and_ranks_stay_however_often_it_is_killed(
    make_lives: Callable[..., Lives],
    make_cluster: Callable[[Lives], Cluster],
    make_fleet: Callable[[Lives, int], FleetProgram],
) -> None:
    lives = make_lives()
    cluster, fleet = make_cluster(lives), make_fleet(lives, FLEET)
    nodes = cluster.join_all("ab", "--nnodes", "2", "--nproc-per-node", "2")
    begun = cluster.await_round(4)
    cluster.await_state(state="running")
    fleet.await_attached(since=0.0)
    lives.now.await_job("fleet", state="running")
    before = {job: MemberState.of(lives.now, job) for job in ("job", "fleet")}

    for kill in range(KILLS):
        if kill % 2:
            lives.kill()
            lives.start()  # for a moment: the nodes are on their way when the next life ends as well
        killed_at = time.monotonic()
        lives.kill()
        lives.start()
        served_at = time.monotonic()
        await_back(lives.now, "job")
        fleet.await_attached(killed_at)
        print(f"all nodes were back {time.monotonic() - served_at:.2f} s after it listened")  # noqa: T201 - a figure
        assert {job: MemberState.of(lives.now, job) for job in before} == before

    begun.finish()
    assert [node.wait() for node in nodes] == [0, 0], "the workers of the first round have ended well"
    assert [round_.number for round_ in cluster.rounds()] == [begun.number]
    assert len(fleet.events_of("started")) == FLEET
    assert fleet.events_of("ended") == fleet.events_of("gone") == []
    cluster.await_state(state="succeeded")


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


def test_a_coordinator_that_was_stopped_for_three_leases_has_lost_nobody(
    lives: Lives, make_cluster: Callable[[Lives], Cluster]
) -> None:
    cluster = make_cluster(lives)
    nodes = cluster.join_all("ab", "--nnodes", "1:2")
    begun = cluster.await_round(2)
    cluster.await_state(state="running")
    before = MemberState.of(lives.now, "job")

    lives.now.signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    for node in nodes:
        # A lease is longer where a coordinator or a node was late before.
        node.await_line(r"lost the coordinator: the coordinator has been silent for [\d.]+ s; the workers go on")
    wait_until("three leases", lambda: time.monotonic() > stopped_at + STOPPED_S)
    lives.now.signal(signal.SIGCONT)

    await_back(lives.now, "job")
    assert MemberState.of(lives.now, "job") == before
    begun.finish()
    assert [node.wait() for node in nodes] == [0, 0]
    assert max(round_.number for round_ in cluster.rounds()) == begun.number


def test_a_node_that_was_stopped_is_lost_and_ends_its_workers_first_when_it_wakes(
    lives: Lives, make_cluster: Callable[[Lives], Cluster]
) -> None:
    cluster = make_cluster(lives)
    flags = ("--nnodes", "1:2", "--max-restarts", "1", "--stop-timeout", "1")
    sleeper, other = cluster.join_all("ab", *flags, script="--family")
    begun = cluster.await_round(2)
    cluster.await_state(state="running")

    sleeper.signal(signal.SIGSTOP)
    without = cluster.await_round(1, after=begun, nodes="b")
    assert without.restarts == {0}, "a node that is lost costs nothing"
    stale = {pid for worker in begun.on("a") for pid in (worker.pid, *worker.family)}
    assert stale <= {*sleeper.leftovers()}, "nobody has ended the workers of a node that sleeps"

    sleeper.signal(signal.SIGCONT)
    sleeper.await_line(f"stopping the workers of round {begun.number}: ")
    earlier = "|".join(str(number) for number in range(begun.number + 1))
    sleeper.await_line(rf"starting round (?!({earlier}):)")
    assert not stale & {*sleeper.leftovers()}
    assert cluster.await_round(2, after=without).restarts == {0}
    sleeper.await_no_zombies()
    other.stop()
