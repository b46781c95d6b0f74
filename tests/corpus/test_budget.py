"""Peer bugs: each agent counts restarts for itself, also for what is no failure; nothing shows what failed first."""

from coordinatord.core.rounds.state.durable import State
from tests.corpus.support import AT_ONCE, begin, furnish, runs
from tests.sim.scenario import Network, Workers


def test_all_nodes_count_the_same_restarts() -> None:
    world = begin(4)
    for number, name in enumerate(("n1", "n3", "n3"), start=2):
        world.hosts[name].workers.fail()
        world.until(runs(world, number))
    assert {part.restarts_used for part in world.assignments.values()} == {3}


def test_workers_that_all_fail_at_once_cost_one_restart() -> None:
    world = begin(4)
    for host in world.hosts.values():
        host.workers.fail()
    world.until(runs(world, 2))
    assert world.run.durable.restarts_used == 1


def test_nodes_that_come_and_go_cost_no_restart() -> None:
    world = begin(3, nodes_min=2, max_restarts=0)
    for seconds in (0.1, 0.9, 1.5, 3.0, 8.0):
        world.hosts["n3"].kill()
        world.go_on(seconds)
        world.hosts["n3"].boot()
        world.go_on(seconds)
    assert world.is_running()
    assert len(world.order) == 3
    assert world.run.durable.restarts_used == 0


def test_to_leave_and_come_back_buys_no_restart() -> None:
    world = begin(3, max_restarts=1)
    world.hosts["n2"].workers.fail()
    world.until(runs(world, 2))
    world.hosts["n2"].kill()
    world.hosts["n2"].boot()
    world.until(runs(world, 3))
    world.hosts["n2"].workers.fail()
    world.until(world.is_over)
    assert world.run.durable.state is State.FAILED


def test_a_job_that_crashes_at_every_start_ends_with_its_budget() -> None:
    world = furnish(3, nodes_min=3, max_restarts=2, workers=Workers(fails_at_once=1.0))
    world.boot()
    world.until(world.is_over)
    assert world.run.durable.state is State.FAILED
    assert world.run.durable.round == 3


def test_everybody_ends_with_the_name_and_the_code_of_the_first_failure_and_not_of_its_victims() -> None:
    # Victims fail before they are stopped.
    world = begin(20, max_restarts=0, network=Network(least_s=0.1, spread_s=0.001))
    world.hosts["n3"].workers.fail(exit_code=17)
    world.until(world.is_over, within=2 * AT_ONCE)
    for host in world.hosts.values():
        assert host.exit is not None
        assert host.exit.code == 17
        assert "node n3 failed: exit code 17" in host.exit.message
        assert host.exit.report is not None
        assert host.exit.report.consequences_count > 1
