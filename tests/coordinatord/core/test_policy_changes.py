"""An operator changes the settings while jobs run: what is decided from then on goes by them, and nobody is lost."""

import dataclasses
from typing import Any

import pytest
from msgspec import structs

from coordinatord.core.rounds.effects import Send
from coordinatord.core.rounds.events import PolicyChanged, StoreFailed, StoreRecovered, Tick
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.records import NodeLost, RoundFormed
from tests.corpus.support import begin
from tests.sim.world import World
from tests.support.script import Stage, play

SETTLED_S = 60.0
"""Many heartbeats and leases, of either length."""


def change(world: World, **numbers: Any) -> Policy:
    """Have the coordinator of a simulated world decide by other numbers."""
    policy = structs.replace(world.daemon.machine.policy, **numbers)
    world.scenario = dataclasses.replace(world.scenario, policy=policy)
    world.daemon.change_policy(policy)
    return policy


@pytest.mark.parametrize("heartbeats", [(1.0, 6.0), (0.2, 1.0), (6.0, 1.0, 6.0, 0.2)])
@pytest.mark.parametrize("waits_s", [0.1, 3.3])
def test_a_changed_heartbeat_loses_nobody_and_nodes_go_by_it(heartbeats: tuple[float, ...], waits_s: float) -> None:
    first, *others = heartbeats
    world = begin(4, nodes_max=3, policy=Policy(heartbeat_s=first))
    world.go_on(20.0)
    for heartbeat_s in others:
        world.go_on(waits_s)
        change(world, heartbeat_s=heartbeat_s)
        world.go_on(SETTLED_S if heartbeat_s == others[-1] else waits_s)
    machine = world.daemon.machine
    [run] = machine.jobs.values()
    assert (run.durable.state, run.durable.round, len(run.members)) == (State.RUNNING, 1, 4)
    for member in run.members.values():
        assert member.session.sent is not None
        assert (member.session.sent.heartbeat_s, member.session.sent.lease_s) == (others[-1], 5 * others[-1])
    for host in world.hosts.values():
        assert host.agent is not None
        assert host.agent._connection.heartbeat_s == others[-1]


def test_a_host_that_goes_later_is_lost_by_the_lease_of_then() -> None:
    world = begin(3, nodes_max=2, policy=Policy(heartbeat_s=4.0))
    change(world, heartbeat_s=1.0)
    world.go_on(10.0)
    world.hosts["n1"].vanish()
    world.until(lambda: world.run.durable.round == 2, within=5.0 + 2.0)


def test_the_coordinator_looks_at_the_clock_each_heartbeat_of_now() -> None:
    stage = play("join n1 min=1 max=2", heartbeat_s=20.0, settle_s=50.0, settle_max_s=50.0)
    assert stage.coordinator.next_deadline() == 20.0
    stage.now = 3.0
    stage.handle(PolicyChanged(Policy(settle_s=50.0, settle_max_s=50.0)))
    assert stage.coordinator.next_deadline() == 4.0


def formed_at(stage: Stage) -> list[float]:
    return [at for at, record in stage.past if isinstance(record, RoundFormed)]


def test_a_window_that_is_over_by_now_forms_the_round_at_once() -> None:
    stage = play("join n1 min=1 max=2", "advance 3s", settle_s=5.0)
    assert formed_at(stage) == []
    stage.handle(PolicyChanged(Policy(settle_s=2.0)))
    assert formed_at(stage) == [3.0]


def test_nodes_that_train_are_sent_another_outage_grace_at_once() -> None:
    stage = play("join n1 min=1 max=1", "running n1")
    stage.handle(PolicyChanged(Policy(outage_grace_s=77.0)))
    assert stage.desired("n1").outage_grace_s == 77.0


def test_while_nothing_can_be_recorded_nothing_is_decided_by_the_new_numbers_either() -> None:
    stage = play("join n1 min=1 max=2", "advance 3s", settle_s=5.0)
    stage.handle(StoreFailed("disk full"))
    stage.handle(PolicyChanged(Policy(settle_s=1.0, heartbeat_s=0.5)))
    stage.play("advance 57s")
    assert formed_at(stage) == []
    stage.handle(StoreRecovered())
    assert formed_at(stage) == [60.0]
    assert not any(isinstance(record, NodeLost) for _, record in stage.past)


def test_a_connection_that_ends_after_its_lease_has_ended_gives_no_other_lease() -> None:
    """A longer heartbeat may make its node look punctual again; if it is gone next, nobody would be left to lose."""
    stage = play("join n1 min=1 max=1", "running n1", "silence n1", "advance 6s")
    assert stage.run.members["n1"].lease.expired
    stage.handle(PolicyChanged(Policy(heartbeat_s=20.0)))
    stage.play("drop n1", "ask stop default")
    stage.handle(Tick())
    assert stage.state() is State.STOPPED


def test_an_answer_with_another_heartbeat_repeats_the_one_before_and_waits_for_no_record() -> None:
    stage = play("join n1 min=1 max=1", "running n1")
    granted = []
    for heartbeat_s in (1.0, 1.0, 2.0):
        stage.handle(PolicyChanged(Policy(heartbeat_s=heartbeat_s)))
        batch = stage.report("n1", beat=True)
        [sent] = batch.effects
        assert isinstance(sent, Send)
        granted.append((sent.message.heartbeat_s, batch.repeats))
    assert granted[1:] == [(1.0, True), (2.0, True)]
