"""SIGSTOP and SIGCONT: a coordinatord that slept condemns nobody, and a nodeclient that slept too long is fenced."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.lives import Lives, MemberState, await_back
from tests.support.programs import wait_until

pytestmark = pytest.mark.slow

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
