"""Nodes that are to leave, and stay for a while to give their kept state to others, or to write it.

They are drained for their lateness while others are late as well, or are undrained while there are too few others.
These are histories of their own, so that the seeds of others play what they have always played.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

from coordinatord.core.queries.arrivals import EVERY_S
from coordinatord.core.state.durable import State
from coordinatord.core.state.member import MemberState
from coordinatord.core.values.admin_requests import DrainNode, UndrainNode
from tests.sim.coincidences import has_steps, in_round, once, trains
from tests.sim.faults import Strike
from tests.sim.history import LAGS_FOR_S, come_to_rest, play_coincidence
from tests.sim.host import Host
from tests.sim.kept_disk import DiskFault
from tests.sim.kept_memory import Keeps
from tests.sim.laggards import Laggards
from tests.sim.scenario import draw_calm_scenario
from tests.sim.world import World


def late_giving_world(seed: int, *, loud: bool = False, digested: bool = False) -> World:
    """Play the history of a few nodes of which some are late, one after the other. Raises as `small_world` does."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(
        drawn.workers,
        first_step_s=chance.choice([0.0, 0.7]),
        rounds_with_steps=math.inf,
        starts_within_s=0.1,
        stubborn=0.0,
        work_s=LAGS_FOR_S,
    )
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
    world = World(seed, scenario, loud=loud, digested=digested)
    laggards = world.laggards = Laggards(world, [EVERY_S / 10])
    world.boot()
    world.comes_back = 1.0
    world.disks.break_down(DiskFault.HANGS)  # so a node that leaves stays for as long as it may
    world.go_on(LAGS_FOR_S)
    laggards.is_over = True
    come_to_rest(world)
    return world


def undrained_world(seed: int, *, loud: bool = False, digested: bool = False) -> World:
    """Play the history of a node that is drained, stays to give its state, and is undrained when another is gone.

    Raises as `small_world` does.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(
        drawn.workers, first_step_s=chance.choice([0.0, 0.7]), rounds_with_steps=math.inf, work_s=60.0, stubborn=0.0
    )
    nodes = chance.choice([2, 3])
    scenario = replace(
        drawn, nodes_min=nodes, nodes_max=nodes, hosts=nodes, max_restarts=9, keeps=Keeps.UNIQUE, workers=workers
    )
    known: dict[str, Strike] = {"giver is undrained when another is gone": _undrain_giver}
    return play_coincidence(seed, chance, scenario, known, loud=loud, digested=digested)


def _undrain_giver(world: World) -> None:
    def drain() -> None:
        giver, other = world.chance.sample(in_round(world), 2)
        world.daemon.ask(DrainNode(giver.node, "operator", ""))
        once(world, lambda: _gives(world, giver), lambda: undrain(giver, other))

    def undrain(giver: Host, other: Host) -> None:
        other.kill()
        world.queue.plan(world.chance.random(), world.daemon.ask, UndrainNode(giver.node, "operator", ""))

    once(world, lambda: trains(world) and has_steps(world), drain)


def _gives(world: World, giver: Host) -> bool:
    """Whether a node gives its state to others, between two rounds."""
    if not world.daemon.up or world.state is not State.FORMING:
        return False
    return giver.node in {member.node for member in world.run.members_in(MemberState.GIVING)}
