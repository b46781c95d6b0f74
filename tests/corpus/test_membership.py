"""Peer bugs: a node that comes, goes, waits or stands by breaks the job, or is not waited for, or for too long."""

import signal

from coordinatord.core.rounds.state.durable import State
from tests.corpus.support import AT_ONCE, BLOCKED, begin, furnish, runs, trains
from tests.sim.scenario import Workers

HOUR_S = 3600.0


def test_a_node_that_leaves_does_not_close_the_job_and_may_come_again() -> None:
    world = begin(3, nodes_min=2)
    world.hosts["n2"].leave()
    world.until(trains(world, "n1", "n3"))
    world.hosts["n2"].boot()
    world.until(trains(world, "n1", "n3", "n2"))


def test_a_node_that_waited_in_vain_does_not_close_the_job_for_those_who_come_later() -> None:
    world = furnish(3, nodes_min=3)
    world.hosts["n1"].boot()
    world.until(lambda: world.hosts["n1"].agent is None)
    world.boot()
    world.until(runs(world, 1))


def test_a_round_of_all_nodes_starts_at_once() -> None:
    world = furnish(4, nodes_min=2, arrive_within_s=0.0)
    world.boot()
    world.until(runs(world, 1), within=0.1)


def test_who_is_back_from_the_last_round_does_not_wait_for_others() -> None:
    world = begin(3, nodes_min=2, nodes_max=8)
    world.hosts["n2"].workers.fail()
    world.until(runs(world, 2), within=AT_ONCE)


def test_nodes_that_arrive_shortly_after_each_other_are_in_one_round() -> None:
    world = furnish(5, nodes_min=1, nodes_max=8, arrive_within_s=1.9)
    world.boot()
    world.until(runs(world, 1))
    assert len(world.order) == 5


def test_a_trickle_of_arrivals_does_not_hold_a_round_up_for_ever() -> None:
    world = furnish(30, nodes_min=1, nodes_max=40)
    for number, host in enumerate(world.hosts.values()):
        world.queue.plan(number * 1.5, host.boot)
    world.until(runs(world, 1), within=10 + AT_ONCE)


def test_hundreds_of_nodes_that_come_at_one_moment_are_in_one_round() -> None:
    world = furnish(500, nodes_min=500, arrive_within_s=0.0)
    world.boot()
    world.until(runs(world, 1), within=0.1)


def test_an_arrival_leaves_workers_as_long_to_save_as_their_user_wants() -> None:
    world = furnish(3, stop_timeout_s=100.0, workers=Workers(stubborn=1.0, slow_to_die=0.0))
    world.hosts["n1"].boot()
    world.hosts["n2"].boot()
    world.until(runs(world, 1))
    world.hosts["n3"].boot()
    world.until(lambda: world.state is State.STOPPING)
    world.go_on(99)
    assert world.hosts["n1"].workers.alive
    world.until(runs(world, 2), within=1 + AT_ONCE)


def test_a_preempted_node_saves_and_goes_and_the_others_go_on_for_free() -> None:
    world = begin(3, nodes_min=2, stop_timeout_s=100.0, workers=Workers(saves_within_s=60.0, stubborn=0.0))
    world.hosts["n2"].leave()
    world.until(runs(world, 2))
    assert (world.run.id, 1) in world.invariants.facts.stopped_on_purpose
    assert world.run.durable.restarts_used == 0
    assert world.hosts["n2"].exit is not None
    assert world.hosts["n2"].exit.code == 128 + signal.SIGUSR1, "as its user asked it to"


def test_a_storm_of_signals_ends_every_node_in_good_time() -> None:
    world = begin(20)
    for _ in range(3):
        for host in world.hosts.values():
            host.leave()
    world.until(lambda: all(host.agent is None for host in world.hosts.values()), within=AT_ONCE)


def test_a_run_that_all_nodes_left_in_a_hurry_is_over_at_once() -> None:
    world = begin(4)
    for _ in range(2):
        for host in world.hosts.values():
            host.leave()
    world.until(world.is_over, within=3 * AT_ONCE)


def test_more_nodes_than_the_maximum_are_spares_and_not_an_error() -> None:
    world = begin(7, nodes_min=3, nodes_max=3, workers=Workers(work_s=60.0))
    spares = [host for name, host in world.hosts.items() if name not in world.order]
    world.go_on(30)
    assert len(spares) == 4
    assert all(spare.agent is not None and not spare.workers.alive for spare in spares)


def test_spares_are_released_with_the_success_of_the_run() -> None:
    world = begin(5, nodes_min=3, nodes_max=3, workers=Workers(work_s=30.0))
    world.until(world.is_over)
    assert {host.exit.code for host in world.hosts.values() if host.exit} == {0}


def test_spare_after_spare_takes_a_place_until_too_few_are_left() -> None:
    world = begin(5, nodes_min=3, nodes_max=3)
    for number in (2, 3):
        world.hosts[world.order[0]].vanish()
        world.until(runs(world, number))
        assert len(world.order) == 3
    world.hosts[world.order[0]].vanish()
    world.until(lambda: world.state is State.FORMING)


def test_spares_do_not_take_the_places_of_nodes_that_are_coming_back() -> None:
    world = begin(6, nodes_min=3, nodes_max=3, workers=BLOCKED)
    actives = world.order
    active = world.hosts[actives[0]]
    active.workers.fail()
    world.until(runs(world, 2))
    assert world.order == actives
    active.kill()
    active.boot()
    world.until(runs(world, 3))
    assert world.order == actives


def test_a_node_that_comes_minutes_after_the_others_is_waited_for() -> None:
    world = furnish(3, nodes_min=3, join_timeout_s=600.0)
    world.hosts["n1"].boot()
    world.hosts["n2"].boot()
    world.go_on(500)
    world.hosts["n3"].boot()
    world.until(runs(world, 1), within=AT_ONCE)


def test_whoever_waits_sees_for_whom() -> None:
    world = begin(3, nodes_min=3)
    world.hosts["n3"].kill()
    world.until(lambda: world.state is State.FORMING)
    world.go_on(2)
    for name in ("n1", "n2"):
        assert (agent := world.hosts[name].agent) is not None
        assert agent._desired is not None
        assert agent._desired.reason.endswith("missing: node n3")


def test_a_job_id_may_be_used_again_when_its_run_is_over() -> None:
    world = begin(3, max_restarts=1, workers=Workers(work_s=30.0))
    first = world.run.id
    world.hosts["n1"].workers.fail()
    world.until(world.is_over)
    world.boot()
    world.until(runs(world, 1))
    assert world.run.id != first
    assert world.run.durable.restarts_used == 0


def test_a_worker_that_finishes_minutes_after_the_others_finishes() -> None:
    world = begin(4, workers=Workers(work_s=10.0, ends_within_s=900.0))
    world.until(world.is_over, within=1000)
    assert world.run.durable.state is State.SUCCEEDED


def test_nodes_that_had_finished_run_again_when_a_host_dies_that_had_not() -> None:
    world = begin(4, nodes_min=2, workers=Workers(work_s=10.0, ends_within_s=60.0, stubborn=0.0))
    world.until(lambda: any(not host.workers.alive for host in world.hosts.values()))
    late = next(host for host in world.hosts.values() if host.workers.alive)
    late.vanish()
    world.until(runs(world, 2), within=10)
    assert len(world.order) == 3


def test_a_node_that_comes_while_others_finish_does_not_make_them_begin_again() -> None:
    world = furnish(4, nodes_min=3, workers=Workers(work_s=10.0, ends_within_s=60.0))
    for name in ("n1", "n2", "n3"):
        world.hosts[name].boot()
    world.until(lambda: any(training.exited_well for training in world.trainings.values()))
    world.hosts["n4"].boot()
    world.until(world.is_over)
    assert world.run.durable.state is State.SUCCEEDED
    assert world.run.durable.round == 1


def test_clocks_that_are_hours_apart_and_leap_lose_nobody() -> None:
    world = begin(3, skew=0.01)
    for leap in (5 * HOUR_S, -10 * HOUR_S):
        world.daemon.wall_offset += leap
        world.daemon.crash()
        world.daemon.start()
        world.go_on(60)
    assert world.run.durable.round == 1


def test_a_nodeclient_that_is_started_again_with_its_clock_hours_behind_is_let_in() -> None:
    world = begin(3)
    host = world.hosts["n2"]
    host.kill()
    host._wall_skew_ns = -int(5 * HOUR_S * 1e9)
    host.boot()
    world.until(runs(world, 2), within=AT_ONCE)
    assert len(world.order) == 3
