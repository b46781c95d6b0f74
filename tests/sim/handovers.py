"""Nodes that are to leave, and stay for a while to give their kept state to others, or to write it to the disk.

They are drained for their lateness while others are late as well, are undrained while there are too few others, are
replaced when they are about to go, leave the only other node alone, or leave before the next round has done a step.
All of a job may leave as well: they are asked to, or are too few once one has died, or the job has failed.

These are histories of their own, so that the seeds of others play what they have always played.
"""

from __future__ import annotations

import random
from dataclasses import replace

from coordinatord.core.keeping.handover import HAND_OVER_S
from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.values.admin_requests import DrainNode, UndrainNode
from coordinatord.core.watching.arrivals import EVERY_S
from tests.sim.coincidences import has_steps, in_round, newcomer, once, trains
from tests.sim.faults import FAULTS, Strike, happen, strike
from tests.sim.history import FAULTS_FOR_S, LAGS_FOR_S, LAST_S, begin, come_to_rest, play_coincidence
from tests.sim.host import Host
from tests.sim.kept_copies import Keeps
from tests.sim.kept_disk import DiskFault
from tests.sim.laggards import Laggards
from tests.sim.scenario import Scenario, draw_calm_scenario, draw_persisting_scenario, stepping_workers
from tests.sim.world import World

LAST_MOMENT_S = 2.0
"""How long before the end of a giver's time another node comes, at most: about as long as it takes to get a state."""

LEAVES_WITHIN_S = 5.0
"""The time within which a node leaves, once a step is kept twice."""


def late_giving_world(seed: int) -> World:
    """Play the history of a few nodes of which some are late, one after the other."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), starts_within_s=0.1, stubborn=0.0, work_s=LAGS_FOR_S)
    scenario = replace(
        drawn,
        nodes_min=1,
        nodes_max=4,
        hosts=4,
        max_restarts=9,
        drain_laggards=1.2,
        keeps=chance.choice(list(Keeps)),
        persist_every_s=600,
        workers=workers,
    )
    world = World(seed, scenario)
    laggards = world.laggards = Laggards(world, [EVERY_S / 10])
    world.boot()
    world.comes_back = 1.0
    world.disks.break_down(DiskFault.HANGS)  # so a node that leaves stays for as long as it may
    world.go_on(LAGS_FOR_S)
    laggards.is_over = True
    come_to_rest(world)
    return world


def undrained_world(seed: int) -> World:
    """Play the history of a node that is drained, stays to give its state, and is undrained when another is gone."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    known: dict[str, Strike] = {"giver is undrained when another is gone": _undrain_giver}
    return play_coincidence(seed, chance, _draw_scenario(chance), known)


def late_newcomer_world(seed: int) -> World:
    """Play the history of a node that leaves, and stays to give its state until another comes at the last moment."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    scenario = replace(_draw_scenario(chance), join_timeout_s=2 * HAND_OVER_S)
    known: dict[str, Strike] = {"newcomer when a giver is about to go": _replace_giver}
    return play_coincidence(seed, chance, scenario, known)


def _draw_scenario(chance: random.Random) -> Scenario:
    """Draw a few nodes that each keep a part of the state, and cannot go on without one of them."""
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), stubborn=0.0)
    return replace(drawn.of_nodes(chance.choice([2, 3])), max_restarts=9, keeps=Keeps.UNIQUE, workers=workers)


def _undrain_giver(world: World) -> None:
    def drain() -> None:
        giver, other = world.chance.sample(in_round(world), 2)
        world.daemon.ask(DrainNode(giver.node, "operator", ""))
        once(world, lambda: _gives(world, giver), lambda: undrain(giver, other))

    def undrain(giver: Host, other: Host) -> None:
        other.kill()
        world.queue.plan(world.chance.random(), world.daemon.ask, UndrainNode(giver.node, "operator", ""))

    once(world, lambda: trains(world) and has_steps(world), drain)


def _replace_giver(world: World) -> None:
    def leave() -> None:
        giver = world.chance.choice(in_round(world))
        giver.leave()
        once(world, lambda: _gives(world, giver), plan_newcomer)

    def plan_newcomer() -> None:
        world.queue.plan(HAND_OVER_S - world.chance.uniform(0.1, LAST_MOMENT_S), newcomer, world)

    once(world, lambda: trains(world) and has_steps(world), leave)


def _gives(world: World, giver: Host) -> bool:
    """Whether a node gives its state to others, between two rounds."""
    if not world.daemon.up or world.state is not State.FORMING:
        return False
    return giver.node in {member.node for member in world.run.roll.in_state(MemberState.HANDING_OVER)}


def lone_node_world(seed: int) -> World:
    """Play the history of a node whose only peer leaves."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), stubborn=0.0)
    scenario = replace(
        drawn, nodes_min=1, nodes_max=2, hosts=2, max_restarts=9, keeps=Keeps.UNIQUE, copies=True, workers=workers
    )
    known: dict[str, Strike] = {"one of two nodes leaves": _leave_alone}
    return play_coincidence(seed, chance, scenario, known)


def _leave_alone(world: World) -> None:
    def leave() -> None:
        world.queue.plan(world.chance.uniform(0.0, LEAVES_WITHIN_S), world.chance.choice(in_round(world)).leave)

    once(
        world,
        lambda: trains(world) and len(in_round(world)) == world.scenario.hosts and kept_of(world.run).copied,
        leave,
    )


EVENTS_MAX = 12

APART_S = 3.0
"""The longest time between two of them: about as long as it takes to form a round and to do its first step."""


def planned_world(seed: int) -> World:
    """Play the history of a few nodes to which only planned events happen."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), stubborn=0.0, first_step_s=chance.choice([0.7, 3.0]))
    nodes = chance.choice([1, 2, 3])
    scenario = replace(
        drawn,
        nodes_min=chance.choice([1, nodes]),
        nodes_max=nodes + chance.choice([0, 1]),
        hosts=nodes,
        max_restarts=9,
        keeps=chance.choice(list(Keeps)),
        copies=chance.random() < 0.3,
        persist_every_s=600 if seed % 2 else None,  # so what nodes keep is not on the disk before they leave
        only_planned=True,
        workers=workers,
    )
    world = begin(seed, scenario)
    once(world, lambda: trains(world) and has_steps(world), lambda: _plan_events(world, chance))
    world.go_on(FAULTS_FOR_S)
    come_to_rest(world)
    return world


def _plan_events(world: World, chance: random.Random) -> None:
    at = 0.0
    for _ in range(chance.randint(2, EVENTS_MAX)):
        name = chance.choice(list(PLANNED))
        world.queue.plan(at, happen, world, name, PLANNED[name])
        at += chance.uniform(0.0, APART_S)


def _replace_node(world: World) -> None:
    """Drain a node, and start another one on a new host."""
    if hosts := in_round(world):
        world.daemon.ask(DrainNode(world.chance.choice(hosts).node, "operator", ""))
    newcomer(world)


def _replace_all(world: World) -> None:
    """Replace all nodes at once, and start the coordinator again before it knows that it may let them go."""
    for host in in_round(world):
        world.daemon.ask(DrainNode(host.node, "operator", ""))
        newcomer(world)
    world.queue.plan(world.chance.uniform(0.0, APART_S), _restart_coordinator, world)


def _restart_coordinator(world: World) -> None:
    world.daemon.crash()
    world.queue.plan(world.chance.random(), world.daemon.start)


PLANNED: dict[str, Strike] = {
    "a node is replaced": _replace_node,
    "all nodes are replaced": _replace_all,
    "operator restarts": FAULTS["operator restarts"],
    "coordinator is started again": _restart_coordinator,
}


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
    scenario = draw_persisting_scenario(chance).of_nodes(nodes)
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
