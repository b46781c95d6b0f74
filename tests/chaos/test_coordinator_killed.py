"""coordinatord is killed with -9 again and again, under real nodes and many simulated ones, and nobody notices.

The long form, with gloo and with random moments, is `benchmarks/chaos.py`.
"""

import time
from collections.abc import Callable

import pytest

from tests.support.cluster import Cluster
from tests.support.lives import FleetProgram, Lives, MemberState, await_back

pytestmark = pytest.mark.slow

KILLS = 4

FLEET = 40


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
