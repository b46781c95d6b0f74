"""The simulated memory of kept state: a dead worker's save is not whole, as in life, and saves find a place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinatord.core.keeping.known import kept_of
from nodeclient.keeping.disk.disk_thread import STALL_S
from tests.sim.coincidences import has_steps
from tests.sim.kept_copies import COPY_S, Keeps
from tests.sim.kept_disk import DiskFault
from tests.sim.kept_memory import KeptMemory
from tests.sim.scenario import Scenario, Workers
from tests.sim.world import World

PAIR = Scenario(
    hosts=2,
    nodes_min=2,
    nodes_max=2,
    arrive_within_s=0.5,
    skips_idle=False,
    keeps=Keeps.UNIQUE,
    workers=Workers(first_step_s=0.0, stubborn=0.0, slow_to_die=0.0),
)


def begun(memory: KeptMemory) -> list[int]:
    """Return the places that are being written."""
    return [number for number, place in enumerate(memory.places) if place is not None and not place.whole]


@pytest.mark.parametrize("others", [False, True])
def test_a_save_becomes_whole_unless_its_node_has_other_workers_by_then(others: bool) -> None:
    world = World(1, PAIR)
    world.boot()
    world.until(world.is_running, within=30)
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
    trio = replace(PAIR, hosts=3, nodes_min=3, nodes_max=3, max_restarts=9, keeps=Keeps.SHARED, persist_every_s=2)
    world = World(seed, trio)
    world.boot()
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
    drawn = replace(PAIR, hosts=hosts, nodes_min=hosts, nodes_max=hosts, keeps=keeps, persist_every_s=2)
    world = World(1, replace(drawn, copies=copies, save_steps=save_steps))
    world.boot()
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
