"""Histories that are played by hand, each checked at every step, and the tools that repeat one from its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.events import Reported
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.values.records import RoundFormed
from coordinatord.protocol.messages import Phase
from coordinatord.store.etcd.gateway import REQUEST_WITHIN_S
from nodeclient.core.sweeping import FREE_WITHIN_S, SAMPLE_MAX_S
from nodeclient.keeping.disk.disk_thread import STALL_S
from tests.sim import campaign
from tests.sim.coincidences import has_steps
from tests.sim.disk import CrashPoint, Fault
from tests.sim.etcd import LEASE_S
from tests.sim.etcd_coordinator import EtcdCoordinator
from tests.sim.history import begin, small_world
from tests.sim.kept_copies import COPY_S, Keeps
from tests.sim.kept_disk import DiskFault
from tests.sim.kept_memory import KeptMemory
from tests.sim.scenario import Scenario, Workers
from tests.sim.takeovers import etcd_coordinators
from tests.sim.trace import Trace
from tests.sim.world import BrokenError, World
from tests.support.programs import TIMEOUT_S

PROMPT = Workers(stubborn=0.0, slow_to_die=0.0)
"""Workers that end at once when they are asked to."""

TRIO = Scenario(hosts=3, nodes_min=3, nodes_max=3, arrive_within_s=0.5, workers=PROMPT)

KEEPING = replace(TRIO, skips_idle=False, keeps=Keeps.UNIQUE, workers=replace(PROMPT, first_step_s=0.0))
"""Nodes of which each keeps a shard of its own."""

DIGEST = """
from tests.sim.history import small_world
from tests.sim.trace import Trace
Trace.is_digested = True
print(small_world({seed}).trace.digest)
"""


def running(scenario: Scenario = TRIO, seed: int = 1) -> World:
    """Begin a history, by default of three nodes, and bring it into its first round."""
    world = begin(seed, scenario)
    world.until(world.is_running, within=30)
    return world


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 11, 40])
def test_a_seed_gives_the_same_history_again_also_in_another_process(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trace, "is_digested", True)
    first, second, other = (small_world(each) for each in (seed, seed, seed + 1))
    assert first.trace.digest == second.trace.digest != other.trace.digest
    assert first.chance.getstate() == second.chance.getstate()
    environ = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DIGEST.format(seed=seed)]
    elsewhere = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert elsewhere.stdout.strip() == first.trace.digest


def test_what_breaks_an_invariant_is_reported_with_the_history_and_the_command_that_repeats_it() -> None:
    world = running(seed=8)
    world.run.durable.restarts_used += 1
    world.hosts["n2"].workers.fail()
    with pytest.raises(BrokenError) as broken:
        world.go_on(10)
    text = campaign.explain(8, broken.value)
    assert "n2: worker 0 fails by itself" in text
    assert "seed 8: RoundLaws: memory and store differ: jobs.job.restarts_used: 1, 0" in text
    assert text.splitlines()[-1].startswith("to repeat: make sim SEED=8 ")


def test_what_does_not_come_in_time_is_reported_with_where_everything_stands() -> None:
    world = begin(5, replace(TRIO, hosts=2))
    with pytest.raises(BrokenError, match="not so within 3 s; life1-1 is forming, round 0: waiting for nodes: 2 of 3"):
        world.until(world.is_running, within=3)


def test_a_leader_that_is_killed_is_followed_by_a_standby_and_no_worker_is_touched() -> None:
    world = running(replace(TRIO, standbys=1))
    started = {name: host.workers.training for name, host in world.hosts.items()}
    for _ in range(3):
        killed = world.daemon
        killed.crash(host=True)
        world.until(lambda: world.daemon.up and world.daemon.machine.sessions == 3, within=LEASE_S + 3)
        assert world.daemon is not killed
        killed.start()
        world.go_on(1.0)
    assert (world.run.durable.state, world.run.durable.round) == (State.RUNNING, 1)
    assert {name: host.workers.training for name, host in world.hosts.items()} == started


@pytest.mark.parametrize("seed", range(8))
def test_of_a_leader_that_is_paused_nodes_are_back_a_moment_after_they_fell_silent(seed: int) -> None:
    world = running(replace(TRIO, standbys=1), seed)
    paused = world.daemon
    paused.pause()
    world.until(lambda: world.daemon is not paused and world.daemon.up, within=LEASE_S + 4)
    world.until(lambda: world.daemon.machine.sessions == 3, within=3)
    assert (world.run.durable.state, world.run.durable.round) == (State.RUNNING, 1)


@pytest.mark.parametrize("is_leader_cut", [False, True], ids=["nodes are cut off", "leader is cut off"])
def test_a_leader_that_starts_without_a_way_to_its_nodes_loses_the_spare_alone_until_it_is_back(
    is_leader_cut: bool,
) -> None:
    world = begin(1, replace(TRIO, nodes_min=2, nodes_max=2, standbys=1, join_timeout_s=60.0))
    world.until(lambda: world.is_running() and world.run.roll.count(MemberState.READY) == 1, within=30)
    world.go_on(1.0)  # the spare receives that it is one
    leader = world.daemon
    for coordinator in world.coordinators:
        coordinator.crash()
    if is_leader_cut:
        assert isinstance(leader, EtcdCoordinator)
        leader.cut_off(etcd=False, nodes=True)
    else:
        for host in world.hosts.values():
            host.cut_off()
    leader.start()
    world.until(lambda: world.invariants.facts.records["NodeLost"] > 0, within=LEASE_S + 20)
    assert sorted(world.run.members) == sorted(world.order)
    leader.heal()
    for host in world.hosts.values():
        host.heal()
    world.until(lambda: world.daemon.machine.sessions == 3, within=10)
    assert (world.run.durable.state, world.run.durable.round) == (State.RUNNING, 1)
    assert world.invariants.facts.records["NodeLost"] == 1
    assert len(world.run.members) == 3


def test_nodes_that_fell_silent_before_the_disk_failed_are_asked_nothing_when_it_is_well_again() -> None:
    world = running()
    for host in world.hosts.values():
        host.cut_off()
    world.go_on(7)
    world.daemon.disk.break_down(Fault.HANGS)
    world.add_host("n4").boot()
    world.go_on(5)
    world.daemon.disk.repair()
    world.go_on(2)
    assert world.daemon.machine.store_error is None


def test_the_budget_is_not_charged_when_a_node_dies_with_the_coordinator() -> None:
    world = running()
    world.hosts["n2"].vanish()
    world.until(lambda: world.state is State.STOPPING, within=5)
    world.daemon.crash()
    world.go_on(5)
    world.daemon.start()
    world.until(lambda: world.state is State.FORMING, within=60)
    assert world.run.durable.restarts_used == 0


def test_nobody_is_superseded_by_a_process_that_a_crash_would_forget() -> None:
    world = running()
    world.daemon.disk.break_down(Fault.HANGS)
    world.add_host("n1-twin", "n1").boot()
    world.go_on(3)
    world.hosts["n1"].reset()
    world.go_on(8)
    assert world.hosts["n1"].exit is None
    assert world.hosts["n1"].agent is not None
    assert world.hosts["n1"].agent.phase is Phase.RUNNING


@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING])
def test_a_store_that_is_set_back_goes_on_counting_where_the_nodes_are(state: State) -> None:
    world = begin(1, replace(TRIO, workers=Workers(starts_within_s=1.0)))
    world.until(lambda: world.state is state and not world.daemon.writing, within=30)
    copy = world.daemon.disk.copy()
    world.until(world.is_running, within=30)
    world.hosts["n3"].workers.fail()
    world.until(lambda: world.is_running() and world.run.durable.round == 2, within=30)
    world.daemon.set_store_back(copy)
    world.daemon.start()
    world.until(lambda: world.is_running() and world.run.durable.round > 2, within=60)


@pytest.mark.parametrize("seed", [1, 23])
def test_a_leader_that_no_node_reaches_waits_for_a_standby_that_etcd_answers_late(seed: int) -> None:
    world = running(
        replace(TRIO, arrive_within_s=3.0, standbys=1, skips_idle=False, workers=Workers(work_s=600.0)), seed
    )
    [cut] = [coordinator for coordinator in etcd_coordinators(world) if coordinator is world.daemon]
    [standby] = [coordinator for coordinator in etcd_coordinators(world) if coordinator is not cut]
    cut.cut_off(etcd=False, nodes=True)
    world.until(lambda: not cut.up, within=LEASE_S + 10)
    standby.cut_off(etcd=True, nodes=False)
    world.go_on(REQUEST_WITHIN_S / 2)
    standby.heal()
    world.until(lambda: world.daemon is standby and standby.up and standby.machine.sessions == 3, within=LEASE_S + 5)
    assert (world.run.durable.state, world.run.durable.round) == (State.RUNNING, 1)


# Memory of GPUs that outlives workers

REST_S = 5.0
"""The time for the pause after the same error, which is 4 s, for messages, and for the end of the workers."""


@pytest.mark.parametrize("seed", range(8))
def test_a_round_waits_for_memory_that_the_driver_holds_and_charges_nobody_for_it(seed: int) -> None:
    workers = replace(PROMPT, gpu_held_s=2 * FREE_WITHIN_S)
    world = running(replace(TRIO.of_nodes(2), stop_timeout_s=30.0, workers=workers), seed)
    for number in (1, 2, 3):
        assert world.run.durable.round == number
        world.hosts["n1"].workers.fail()
        world.until(lambda: world.run.durable.state is State.STOPPING, within=5)
        began_at = world.queue.now
        world.until(world.is_running, within=120)
        assert world.run.durable.round == number + 1
        assert world.queue.now - began_at < FREE_WITHIN_S + SAMPLE_MAX_S + REST_S
        assert world.run.durable.restarts_used == number, "the wait is no failure"


# A shutdown of all hosts, the coordinator's too

APART_S = 0.5
"""The longest time between the first signal and the last one."""

SHARDS = replace(KEEPING, persist_every_s=600, workers=replace(KEEPING.workers, work_s=3600.0))


@pytest.mark.parametrize("seed", range(20))
def test_the_last_step_reaches_the_disk_when_nodes_and_their_coordinator_are_asked_to_end_at_once(seed: int) -> None:
    world = begin(seed, SHARDS)
    world.until(lambda: world.is_running() and kept_of(world.run).protection.whole is not None, within=60)
    kept = kept_of(world.run).protection.whole
    for end in (world.daemon.end, *(host.leave for host in world.hosts.values())):
        world.queue.plan(world.chance.uniform(0.0, APART_S), end)
    world.until(lambda: not world.daemon.up and all(host.exit for host in world.hosts.values()), within=60)
    assert world.run.durable.state is State.LEFT
    assert world.disks.shared.whole[0].of >= (world.run.id, kept)


def test_a_coordinator_whose_job_trains_ends_within_a_second() -> None:
    world = running(SHARDS)
    world.daemon.end()
    world.until(lambda: not world.daemon.up, within=1.1)


# Kept state


@pytest.mark.parametrize("recorded", [False, True])
def test_a_step_is_useless_to_the_next_coordinator_only_if_that_was_recorded(recorded: bool) -> None:
    world = running(KEEPING.of_nodes(1))
    early = world.run.members["n1"].observed
    world.until(lambda: kept_of(world.run).protection.whole is not None, within=10)
    world.daemon.disk.break_down(Fault.HANGS)
    world.hosts["n1"].workers.fail()
    world.until(lambda: world.run.durable.round == 2, within=5)
    chosen, session = world.run.durable.resume, world.run.members["n1"].session.id
    assert chosen is not None
    assert session is not None
    world.daemon.take(Reported(session, early), world.daemon.life)  # it comes late, and lacks what is kept by now
    assert world.run.durable.spoiled
    if recorded:
        world.daemon.doom(CrashPoint.AFTER, RoundFormed)
        world.daemon.disk.repair()
        world.until(lambda: not world.daemon.up, within=5)
    else:
        world.daemon.crash()
        world.daemon.disk.repair()
    world.daemon.start()
    world.until(lambda: world.is_running() and world.run.durable.round > 1, within=30)
    assert (world.run.durable.resume == chosen) is not recorded


def begun(memory: KeptMemory) -> list[int]:
    """Return the places that are being written."""
    return [number for number, place in enumerate(memory.places) if place is not None and not place.whole]


@pytest.mark.parametrize("others", [False, True])
def test_a_save_becomes_whole_unless_its_node_has_other_workers_by_then(others: bool) -> None:
    world = running(KEEPING.of_nodes(2))
    host = world.hosts["n1"]
    memory = host.memory
    assert memory is not None
    world.until(lambda: bool(begun(memory)), within=10)
    [place] = begun(memory)
    host.workers.starts += others
    stored = memory.places[place]
    world.go_on(COPY_S)
    now = memory.places[place]
    assert (now is stored) is others


@pytest.mark.parametrize("seed", [6, 7, 14, 15])
def test_a_break_after_the_first_step_of_a_round_finds_a_place_while_an_older_step_is_written(seed: int) -> None:
    world = begin(seed, replace(KEEPING, max_restarts=9, keeps=Keeps.SHARED, persist_every_s=2))
    world.until(lambda: world.is_running() and kept_of(world.run).disk.pinned is not None, within=30)
    world.disks.break_down(DiskFault.HANGS)
    world.until(lambda: kept_of(world.run).index.newest_whole != kept_of(world.run).disk.pinned, within=30)
    world.hosts["n1"].workers.fail()
    world.until(lambda: world.run.durable.round == 2, within=10)
    world.hosts["n3"].slow_s = 2.0  # its report would make the step whole from which the round resumes
    world.until(lambda: has_steps(world), within=10)
    world.hosts["n1"].workers.fail()
    world.until(lambda: world.run.durable.round == 3, within=20)


@pytest.mark.parametrize(
    ("hosts", "keeps", "copies", "save_steps", "behind"),
    [
        (1, Keeps.SHARED, False, 1, 8),
        (2, Keeps.SHARED, False, 1, 8),
        (2, Keeps.UNIQUE, False, 4, 32),
        (4, Keeps.UNIQUE, False, 4, 32),
        (3, Keeps.UNIQUE, True, 4, 32),
    ],
)
def test_saves_at_an_interval_go_on_while_the_disk_hangs(
    hosts: int, keeps: Keeps, copies: bool, save_steps: int, behind: int
) -> None:
    """All workers may be killed at once, and then no save at the break makes up for an old step."""
    nodes = KEEPING.of_nodes(hosts)
    world = begin(1, replace(nodes, keeps=keeps, persist_every_s=2, copies=copies, save_steps=save_steps))
    world.until(lambda: world.is_running() and kept_of(world.run).disk.pinned is not None, within=30)
    pinned = kept_of(world.run).disk.pinned
    world.disks.break_down(DiskFault.HANGS)
    for _ in range(int(STALL_S / 5) - 1):
        world.go_on(5.0)
        newest, done = kept_of(world.run).index.newest_whole, world.run.step
        assert kept_of(world.run).disk.pinned == pinned
        assert newest is not None
        assert done is not None
        assert newest.step > done - behind, "steps of 0.4 s, saves each 0.5 s or 1.6 s, reports each second"
