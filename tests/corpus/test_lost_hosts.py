"""Peer bugs: a host dies, and the others hang, lose the job, or send to what is no more."""

import pytest

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.protocol.exit_codes import ExitCode
from tests.corpus.support import AT_ONCE, BLOCKED, LEASE_S, begin, furnish, runs, trains


def test_a_host_that_dies_is_replaced_without_waiting_for_a_collective_timeout() -> None:
    world = begin(5, nodes_min=4, nodes_max=4, workers=BLOCKED)
    victim = world.order[1]
    world.hosts[victim].vanish()
    world.until(runs(world, 2), within=LEASE_S + AT_ONCE)
    assert set(world.order) == set(world.hosts) - {victim}
    assert world.run.durable.restarts_used == 0


def test_survivors_go_on_without_a_host_that_nobody_replaces() -> None:
    world = begin(4, nodes_min=2, workers=BLOCKED)
    world.hosts["n2"].vanish()
    world.until(trains(world, "n1", "n3", "n4"), within=LEASE_S + AT_ONCE)


def test_a_nodeclient_that_is_killed_is_noticed_before_its_lease_ends() -> None:
    world = begin(4)
    world.hosts["n2"].kill()
    world.until(trains(world, "n1", "n3", "n4"), within=1 + AT_ONCE)


def test_a_second_host_that_dies_costs_no_more_than_its_own_lease() -> None:
    world = begin(4)
    world.hosts["n1"].vanish()
    world.go_on(2)
    world.hosts["n3"].vanish()
    world.until(trains(world, "n2", "n4"), within=LEASE_S + AT_ONCE)


@pytest.mark.parametrize(
    ("up", "down"),
    [(True, True), (True, False), (False, True)],
    ids=["both ways", "heard no more", "hears no more"],
)
def test_a_host_behind_a_cut_cable_is_replaced_and_joins_again_when_it_is_mended(up: bool, down: bool) -> None:
    world = begin(3, nodes_min=2, workers=BLOCKED)
    world.hosts["n2"].cut_off(up=up, down=down)
    world.until(runs(world, 2), within=LEASE_S + AT_ONCE)
    assert world.hosts["n2"].workers.alive, "it may not know yet"
    world.hosts["n2"].heal()
    world.until(trains(world, "n1", "n3", "n2"))
    assert world.run.durable.restarts_used == 0


def test_hiccups_shorter_than_the_lease_lose_nobody() -> None:
    world = begin(4)
    n1, n2, n3, _ = world.hosts.values()
    n1.reset()
    n2.pause()
    n3.cut_off()
    world.go_on(LEASE_S - 1.5)
    n2.wake()
    n3.heal()
    world.go_on(30)
    assert world.is_running()
    assert world.run.durable.round == 1


def test_a_connection_that_a_firewall_forgets_loses_nobody() -> None:
    world = begin(4)
    world.hosts["n2"].forget()
    world.go_on(30)
    assert world.is_running()
    assert world.run.durable.round == 1


def test_survivors_that_are_blocked_in_a_collective_are_killed_and_not_waited_for() -> None:
    world = begin(4, workers=BLOCKED)
    world.hosts["n3"].workers.fail()
    world.until(runs(world, 2), within=AT_ONCE)
    assert world.order == ["n1", "n2", "n3", "n4"]


def test_when_the_node_of_rank_0_dies_everybody_gets_another_master() -> None:
    world = begin(4)
    world.hosts["n1"].vanish()
    world.until(runs(world, 2))
    assert {part.master_address for part in world.assignments.values()} == {world.hosts["n2"].address}


def test_of_two_nodes_one_goes_on_alone() -> None:
    world = begin(2)
    world.hosts["n1"].kill()
    world.until(trains(world, "n2"))
    assert world.assignments["n2"].world_size == 1


def test_every_round_has_a_number_and_a_port_of_its_own_also_after_the_coordinator_was_killed() -> None:
    world = begin(3, max_restarts=9)
    for number in range(2, 8):
        if number % 2:
            world.daemon.crash()
            world.daemon.start()
        world.hosts["n1"].workers.fail()
        world.until(runs(world, number))
    rounds = world.invariants.facts.formed.values()
    assert [formed.round for formed in rounds] == [1, 2, 3, 4, 5, 6, 7]
    assert len({formed.master_port for formed in rounds}) == 7


def test_a_node_that_dies_while_a_round_starts_holds_nobody_up() -> None:
    world = furnish(4)
    world.boot()
    world.until(lambda: world.state is State.STARTING)
    world.hosts["n2"].vanish()
    world.until(trains(world, "n1", "n3", "n4"), within=LEASE_S + AT_ONCE)


def test_survivors_below_the_minimum_wait_without_workers_and_go_on_when_there_are_enough() -> None:
    world = begin(3, nodes_min=3, workers=BLOCKED)
    world.hosts["n3"].vanish()
    world.until(lambda: world.state is State.FORMING, within=LEASE_S + AT_ONCE)
    assert not any(host.workers.alive for host in world.hosts.values())
    world.hosts["n3"].boot()
    world.until(runs(world, 2), within=AT_ONCE)


def test_survivors_below_the_minimum_are_let_go_in_the_end_with_the_names_of_the_missing() -> None:
    world = begin(3, nodes_min=3)
    world.hosts["n3"].vanish()
    world.until(world.is_over, within=LEASE_S + AT_ONCE + world.scenario.join_timeout_s)
    for name in ("n1", "n2"):
        assert (last_word := world.hosts[name].exit) is not None
        assert last_word.code == ExitCode.TEMPFAIL
        assert "n3" in last_word.message


def test_a_node_whose_workers_outlive_sigkill_is_left_behind_until_they_are_dead() -> None:
    world = begin(3, policy=Policy(stop_limit_s=2.0, restart_grace_s=1.5), stop_timeout_s=0.5, workers=BLOCKED)
    world.hosts["n2"].workers._slow = {0}
    world.hosts["n1"].workers.fail()
    world.until(trains(world, "n1", "n3"), within=2.5 + AT_ONCE)
    world.until(trains(world, "n1", "n3", "n2"))


def test_a_run_that_has_failed_ends_though_workers_hang() -> None:
    world = begin(4, max_restarts=0, workers=BLOCKED)
    world.hosts["n3"].workers.fail()
    world.until(world.is_over, within=2 * AT_ONCE)


def test_hundreds_of_nodes_that_fail_at_different_times_of_one_lost_host_restart_once() -> None:
    world = begin(200, nodes_min=100, max_restarts=0)
    world.hosts["n77"].vanish()
    world.until(runs(world, 2), within=LEASE_S + AT_ONCE)
    assert len(world.order) == 199
    assert world.run.durable.restarts_used == 0
