"""All nodes of a job leave: they are asked to, or one of them died and does not come back, or the job has failed.

A node or the disk may fail meanwhile. The nodes' kept state is lost with them, so their last step has to reach the disk
before. These are histories of their own, so that the seeds of others play what they have always played.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.sim.faults import strike
from tests.sim.history import LAST_S, begin, come_to_rest
from tests.sim.kept_copies import Keeps
from tests.sim.kept_disk import DiskFault
from tests.sim.scenario import draw_persisting_scenario
from tests.sim.world import World

LEAVE_WITHIN_S = 0.3
"""The time within which all are asked, as where a scheduler signals each host."""

FAILS_FOR_S = 3.0, 15.0, 25.0, 140.0
"""How long the disk is full or hangs at most: mostly for less time than nodes wait for it."""

WAIT_IN_VAIN = 0.15
"""The share of histories in which a node dies and does not come back."""

GONE_FOR_S = 150.0
"""The longest time in which nodes write two steps, and some more for a coordinator that is gone."""


def leaving_world(seed: int) -> World:
    """Play the history of nodes that all leave."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    nodes = chance.choice([1, 2, 3, 3])
    scenario = replace(draw_persisting_scenario(chance), hosts=nodes, nodes_min=nodes, nodes_max=nodes)
    if seed % 4 == 0:
        scenario = replace(scenario, max_restarts=0)
    elif seed % 4 == 1:
        # A write is mostly under way as workers end, which takes as long, and others can write the step as well.
        workers = replace(scenario.workers, saves_within_s=2.0)
        scenario = replace(scenario, persist_every_s=2, keeps=Keeps.SHARED, workers=workers)
    world = begin(seed, scenario, 0.0)
    at = chance.uniform(8.0, 30.0)
    if chance.random() < 0.3:
        world.queue.plan(at - chance.uniform(0.0, 3.0), strike, world, "worker fails")
    world.queue.plan(at, _take_back, world, chance)
    world.go_on(at + GONE_FOR_S + chance.uniform(0.0, LAST_S))
    come_to_rest(world)
    return world


def _take_back(world: World, chance: random.Random) -> None:
    """Ask all nodes to leave, mostly with a fault meanwhile; or let one die, so that the others are too few."""
    hosts = list(world.hosts.values())
    if chance.random() < WAIT_IN_VAIN:
        world.faults["node dies for good"] += 1
        chance.choice(hosts).kill()
        return
    for host in hosts:
        world.queue.plan(chance.uniform(0.0, LEAVE_WITHIN_S), host.leave)
    fault = chance.choice([None, "a node dies", "the disk fails", "the coordinator is killed"])
    if world.seed % 4 == 1:
        fault = "the disk is full for one"
    world.faults["all leave" if fault is None else f"all leave and {fault}"] += 1
    if fault == "a node dies":
        world.queue.plan(chance.uniform(0.0, 6.0), chance.choice(hosts).kill)
    elif fault == "the disk fails":
        world.queue.plan(chance.uniform(0.0, 4.0), world.disks.break_down, chance.choice(list(DiskFault)))
        world.queue.plan(4.0 + chance.random() * chance.choice(FAILS_FOR_S), world.disks.heal)
    elif fault == "the disk is full for one":
        world.disks.fill(chance.choice(hosts).name)
        world.queue.plan(chance.choice(FAILS_FOR_S), world.disks.heal)
    elif fault is not None:
        world.queue.plan(chance.uniform(0.0, 4.0), strike, world, "coordinator killed")
