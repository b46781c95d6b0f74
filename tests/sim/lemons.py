"""Jobs with a bad host, or a bad script: workers crash again and again, health checks fail, and operators judge hosts.

Some have spares, and operators have them tested in pairs.

These are histories of their own, so that the seeds of others play what they have always played.
"""

from __future__ import annotations

import random
from dataclasses import replace

from msgspec import structs

from coordinatord.core.rounds.policy import PreflightWhen
from coordinatord.core.rounds.values.admin_requests import PardonNode, PreflightJob, QuarantineNode
from tests.sim.coincidences import newcomer
from tests.sim.history import begin, come_to_rest, draw_preparing, plan_strikes
from tests.sim.scenario import draw_scenario
from tests.sim.world import JOB, World

CRASH = -11
"""The exit code of a worker that crashes: SIGSEGV."""

BAD_SCRIPT = 0.3
"""The share of histories in which workers of any host crash."""

LASTS_S = 120.0
"""How long that goes on."""

BESIDE = ("node killed", "coordinator killed", "arrives", "host gone", "operator drains")


def lemon_world(seed: int) -> World:
    """Play the history of a job with a bad host."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    hosts = chance.choice([3, 4, 6, 9])
    drawn = draw_scenario(chance)
    scenario = replace(
        drawn,
        hosts=hosts,
        nodes_min=chance.choice([1, 2, hosts - 1, hosts]),
        nodes_max=hosts,
        max_restarts=100,
        checks_health=True,
        prepares_within_s=draw_preparing(seed),
        policy=structs.replace(drawn.policy, preflight=PreflightWhen.SUSPICION),
        workers=replace(drawn.workers, work_s=600.0, fails_at_once=0.0, cannot_start=0.0),
    )
    world = begin(seed, scenario, 1.0)
    every = list(world.hosts.values())
    bad = every if chance.random() < BAD_SCRIPT else [chance.choice(every)]
    for _ in range(chance.randint(2, 8)):
        world.queue.plan(chance.uniform(5.0, LASTS_S), chance.choice(bad).workers.fail, CRASH)
    for _ in range(chance.randint(0, 4)):
        host, kind = chance.choice(every), chance.choice([QuarantineNode, PardonNode])
        world.queue.plan(chance.uniform(5.0, LASTS_S), world.daemon.ask, kind(host.node, "operator", ""))
    plan_strikes(world, chance, chance.choice([0, 0, 1, 2]), (5.0, LASTS_S), BESIDE)
    for _ in range(chance.randint(0, 4)):
        world.queue.plan(chance.uniform(0.0, LASTS_S), chance.choice(every).fall_ill, chance.choice([0, 1, 2, 2, None]))
    for _ in range(chance.choice([0, 2, 5])):
        world.queue.plan(chance.uniform(0.0, LASTS_S / 4), newcomer, world)
    for _ in range(chance.randint(0, 3)):
        world.queue.plan(chance.uniform(LASTS_S / 4, LASTS_S), world.daemon.ask, PreflightJob(JOB, "operator", ""))
        ill = chance.choice(every)
        world.queue.plan(chance.uniform(0.0, LASTS_S / 4), ill.fall_ill, chance.choice([0, 2]))
    world.go_on(LASTS_S)
    for host in world.hosts.values():
        host.fall_ill(0)
    come_to_rest(world)
    return world
