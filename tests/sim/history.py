"""Whole histories: a world is made from a seed, suffers faults for a while, is calmed, and must come to rest.

Each raises `BrokenError` if an invariant is broken.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from coordinatord.core.rounds.policy import PreflightWhen
from coordinatord.core.rounds.values.admin_requests import PardonNode, PreflightJob, QuarantineNode, UndrainNode
from coordinatord.protocol.messages import OnDivergence, ScaleUp
from coordinatord.server.driver import WRITE_WITHIN_S
from tests.sim.coincidences import COINCIDENCES, KEEPING, miss_one_for_long, newcomer
from tests.sim.disk_coincidences import LOST, PERSISTING
from tests.sim.faults import FAULTS, Strike, damage, disk_of_states_fails, happen, leave_with_copy, strike
from tests.sim.identity_claims import IdentityClaims
from tests.sim.invariants.laws import Laws
from tests.sim.invariants.rounds import WELL_FOR_S
from tests.sim.kept_copies import Keeps
from tests.sim.laggards import Laggards
from tests.sim.scenario import (
    POLICY,
    Scenario,
    draw_calm_scenario,
    draw_persisting_scenario,
    draw_scenario,
    draw_waiting_scenario,
    large_scenario,
    stepping_workers,
)
from tests.sim.takeovers import TAKEOVERS, take_over
from tests.sim.torn_sessions import TORN
from tests.sim.worker_looks import Doing
from tests.sim.world import JOB, World

FAULTS_FOR_S = 40.0
"""The time within which faults begin in a small world."""

LAST_S = 45.0
"""The longest time that a fault lasts in a small world."""

SETTLED_WITHIN_S = 180.0
"""The time to settle after the last fault: an outage grace, a restart grace, a lease, a join timeout, two stops, and
two rounds, each at its longest."""

LED_WITHIN_S = 30.0
"""The time within which one of several coordinators leads: two leases, and the longest request to etcd."""

HANGS_FOR_S = 480.0
"""The time to settle where workers hang: a restarted coordinator waits for five minutes before it looks at them."""

SLOW_STOP_S = 12.0
"""A `--stop-timeout` in which a node can be lost, and come back while its workers still save."""

WAITS_FOR_S = 110.0
"""The time within which there are too few nodes, and then enough again."""

LAGS_FOR_S = 150.0
"""The time in which workers are late."""

WINDOW_S = 21_600
"""The window of `--max-restarts N/6h`: longer than a history, so that all restarts count by their times."""

FAULT_EVERY_S = 60.0
"""The average interval of faults in a large cluster."""


def begin(seed: int, scenario: Scenario, comes_back: float = 0.7) -> World:
    """Begin a history: a nodeclient starts on every host; of those that end, this share is started again."""
    world = World(seed, scenario)
    world.comes_back = comes_back
    world.boot()
    return world


def plan_strikes(
    world: World, chance: random.Random, number: int, within: tuple[float, float], names: Sequence[str]
) -> None:
    """Let so many faults, each one of `names`, begin between two times."""
    for _ in range(number):
        world.queue.plan(chance.uniform(*within), strike, world, chance.choice(names))


def small_world(seed: int) -> World:
    """Play the history of a few nodes."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    window_s = WINDOW_S if seed % 2 else None
    scenario = replace(draw_scenario(chance), restart_window_s=window_s, prepares_within_s=draw_preparing(seed))
    world = begin(seed, scenario)
    IdentityClaims(world)
    world.comes_back = chance.choice([0.3, 0.7, 1.0])
    names = chance.sample(list(FAULTS), chance.randint(1, len(FAULTS)))
    plan_strikes(world, chance, chance.randint(0, 10), (0.0, FAULTS_FOR_S), names)
    _outlast_faults(world, chance)
    return world


def keeping_world(seed: int) -> World:
    """Play the history of a few nodes that keep state, which may be damaged."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_scenario(chance)
    workers = replace(
        drawn.workers, first_step_s=chance.choice([0.0, 0.7]), stalls=0.0, work_s=chance.uniform(20.0, 60.0)
    )
    scenario = replace(
        drawn,
        max_restarts=chance.choice([2, 9]),
        keeps=chance.choice(list(Keeps)),
        keeps_nothing=chance.choice([0.0, 0.0, 0.2]),
        skips_idle=False,
        workers=workers,
    )
    world = begin(seed, scenario, chance.choice([0.7, 1.0]))
    disturb(world, chance, 10, [0, 0, 1, 3])
    return world


def staying_world(seed: int) -> World:
    """Play one with workers that can go into another round as the same processes."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), stay=chance.choice([0.5, 1.0, 1.0]), breaks=1.0)
    nodes_min = chance.choice([1, 2])
    scenario = replace(
        drawn,
        nodes_min=nodes_min,
        nodes_max=3,
        hosts=3,
        max_restarts=9,
        keeps=chance.choice(list(Keeps)),
        workers=workers,
    )
    world = begin(seed, scenario, chance.choice([0.3, 1.0]))
    plan_strikes(world, chance, chance.randint(1, 6), (5.0, FAULTS_FOR_S), BESIDE_STAYING)
    _outlast_faults(world, chance)
    return world


BESIDE_STAYING = ("worker fails", "worker fails", *(name for name in FAULTS if name != "other settings"))


def disturb(world: World, chance: random.Random, faults_max: int, damages: list[int]) -> None:
    """Plan up to `faults_max` faults, and one of `damages` damages of kept state; wait for the end."""
    names = [*chance.sample(list(FAULTS), chance.randint(1, len(FAULTS))), "worker fails", "node killed"]
    plan_strikes(world, chance, chance.randint(1, faults_max), (0.0, FAULTS_FOR_S), names)
    for _ in range(chance.choice(damages)):
        world.queue.plan(chance.uniform(0.0, FAULTS_FOR_S), damage, world)
    _outlast_faults(world, chance)


def _outlast_faults(world: World, chance: random.Random) -> None:
    """Let time pass while faults begin and last, and wait for the end."""
    world.go_on(FAULTS_FOR_S)
    world.go_on(chance.uniform(0.0, LAST_S))
    come_to_rest(world)


def copying_world(seed: int) -> World:
    """Play one with nodes that keep shards of their own and copy them."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_scenario(chance)
    nodes = chance.choice([2, 3, 3, 4])
    workers = replace(drawn.workers, first_step_s=chance.choice([0.0, 0.7]), stalls=0.0, work_s=60.0, fails_at_once=0.0)
    scenario = replace(
        drawn,
        hosts=nodes + chance.choice([0, 0, 1]),
        nodes_min=max(1, nodes - 1),
        nodes_max=nodes,
        max_restarts=9,
        keeps=Keeps.UNIQUE,
        copies=True,
        racks=chance.choice([0, 0, 1, 2, 3]),
        skips_idle=False,
        workers=workers,
    )
    world = begin(seed, scenario, chance.choice([0.3, 1.0]))
    if chance.random() < 0.3:
        world.queue.plan(chance.uniform(10.0, FAULTS_FOR_S), leave_with_copy, world)
    disturb(world, chance, 6, [0, 0, 0, 1])
    return world


def persisting_world(seed: int) -> World:
    """Play one with nodes that write steps to a disk, and whose runs often end."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_scenario(chance)
    workers = replace(drawn.workers, first_step_s=chance.choice([0.0, 0.7]), stalls=0.0, work_s=60.0, fails_at_once=0.0)
    scenario = replace(
        drawn,
        max_restarts=9,
        keeps=chance.choice(list(Keeps)),
        copies=chance.random() < 0.3,
        persist_every_s=chance.choice([2, 10, 600]),
        scale_up=chance.choice([ScaleUp.NOW, ScaleUp.NOW, ScaleUp.NEVER]),
        keeps_nothing=chance.choice([0.0, 0.0, 0.1]),
        skips_idle=False,
        workers=workers,
    )
    world = begin(seed, scenario, chance.choice([0.7, 1.0]))
    for _ in range(chance.choice([0, 0, 1, 3])):
        world.queue.plan(chance.uniform(0.0, FAULTS_FOR_S), disk_of_states_fails, world)
    plan_strikes(world, chance, chance.choice([0, 1, 2]), (10.0, FAULTS_FOR_S), ENDS_OF_RUNS)
    disturb(world, chance, 6, [0, 0, 0, 1])
    return world


ENDS_OF_RUNS = ("operator stops", "other settings")
"""Faults after which no memory is left, and nodes come back."""


def hanging_world(seed: int, *, heartbeat_s: float = POLICY.heartbeat_s) -> World:
    """Play the history of workers that do no step for a while, or never again."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), work_s=chance.uniform(60.0, 200.0))
    hang_timeout_s = chance.choice([None, None, None, 0.0, 15.0])
    scenario = replace(
        drawn,
        policy=structs.replace(drawn.policy, heartbeat_s=heartbeat_s),
        nodes_min=3 if seed % 4 == 3 else 2,  # in a quarter of the histories, all hosts are needed
        nodes_max=3,
        hosts=3,
        max_restarts=9,
        hang_timeout_s=hang_timeout_s,
        workers=workers,
    )
    world = begin(seed, scenario, 1.0)
    for _ in range(chance.randint(1, 4)):
        world.queue.plan(chance.uniform(5.0, 60.0), _stand_still, world, chance.choice(list(Doing)))
    plan_strikes(world, chance, chance.choice([0, 0, 1, 2]), (5.0, 90.0), BESIDE_HANGS)
    world.go_on(120.0)
    come_to_rest(world, HANGS_FOR_S)
    return world


HEARD_EVERY_S = 0.4
"""A frequent heartbeat: shorter than the least time between two looks, and long enough for calm leases."""


def often_heard_world(seed: int) -> World:
    """Play one of workers that hang on nodes whose heartbeats do not keep looks apart."""
    return hanging_world(seed, heartbeat_s=HEARD_EVERY_S)


def differing_world(seed: int) -> World:
    """Play the history of a few nodes, some of which save another state than others."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_scenario(chance)
    scenario = replace(
        drawn,
        max_restarts=9,
        keeps=Keeps.SHARED,
        states_differ=chance.choice([0.1, 0.3]),
        skips_idle=False,
        workers=replace(drawn.workers, first_step_s=0.0, stalls=0.0, work_s=60.0),
    )
    world = begin(seed, scenario, chance.choice([0.7, 1.0]))
    disturb(world, chance, 10, [0, 0, 1])
    return world


ARRIVALS = 4
"""The most nodes that arrive."""

BESIDE_ARRIVALS = ("worker fails", "node killed", "coordinator killed", "operator restarts")


def checkpoint_waiting_world(seed: int) -> World:
    """Play the history of a few nodes to which others come."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), work_s=90.0)
    nodes = chance.choice([1, 2, 3])
    scenario = replace(
        drawn,
        nodes_min=1,
        nodes_max=nodes + chance.randint(1, ARRIVALS),
        hosts=nodes,
        max_restarts=9,
        scale_up=ScaleUp.AT_CHECKPOINT,
        keeps=Keeps.SHARED,
        writes_every=chance.choice([None, 5, 10, 40]),
        workers=workers,
    )
    world = begin(seed, scenario, 1.0)
    for _ in range(chance.randint(1, ARRIVALS)):
        world.queue.plan(chance.uniform(8.0, FAULTS_FOR_S), newcomer, world)
    plan_strikes(world, chance, chance.choice([0, 1, 2]), (8.0, FAULTS_FOR_S), BESIDE_ARRIVALS)
    world.go_on(FAULTS_FOR_S)
    come_to_rest(world)
    return world


BESIDE_FORGOTTEN = ("worker fails", "coordinator killed", "operator restarts")


def forgetful_world(seed: int) -> World:
    """Play the history of a few nodes whose connections a firewall forgets, some of them or all."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    nodes = chance.choice([2, 3, 4])
    scenario = replace(
        drawn, nodes_min=1, nodes_max=nodes, hosts=nodes, max_restarts=9, workers=replace(drawn.workers, work_s=60.0)
    )
    world = begin(seed, scenario, 1.0)
    for _ in range(chance.choice([1, 2, 4])):
        world.queue.plan(chance.uniform(WELL_FOR_S, FAULTS_FOR_S), happen, world, "connections forgotten", _forget)
    plan_strikes(world, chance, chance.choice([0, 0, 1]), (5.0, FAULTS_FOR_S), BESIDE_FORGOTTEN)
    _outlast_faults(world, chance)
    return world


def _forget(world: World) -> None:
    hosts = list(world.hosts.values())
    for host in world.chance.sample(hosts, world.chance.randint(1, len(hosts))):
        host.forget()


SLOW_COMMIT_S = 0.9 * WRITE_WITHIN_S
"""The longest time that a write takes: after the patience the store would count as failed."""

FAILURES_MAX = 6

FAILURES = ("worker fails", "two workers fail", "node killed", "operator restarts", "operator stops")
"""The failures beside a slow store, by name. The records that follow from each come soon after one another."""


def slow_store_world(seed: int) -> World:
    """Play the history of a few nodes that fail, and of a slow store."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    scenario = replace(
        drawn.of_nodes(chance.choice([2, 3])),
        max_restarts=9,
        commit_s=SLOW_COMMIT_S,
        workers=replace(drawn.workers, work_s=60.0, breaks=1.0),
    )
    world = begin(seed, scenario, 1.0)
    plan_strikes(world, chance, chance.randint(1, FAILURES_MAX), (5.0, FAULTS_FOR_S), FAILURES)
    world.go_on(FAULTS_FOR_S)
    come_to_rest(world)
    return world


def lagging_world(seed: int) -> World:
    """Play the history of a few nodes, of which one is late to collectives."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), work_s=LAGS_FOR_S)
    nodes_min, factor = chance.choice([1, 2, 3]), chance.choice([1.2, 1.2, 1.2, 0.0])
    scenario = replace(
        drawn, nodes_min=nodes_min, nodes_max=3, hosts=4, max_restarts=9, drain_laggards=factor, workers=workers
    )
    world = World(seed, scenario)
    world.laggards = Laggards(world)
    world.boot()
    world.comes_back = 1.0
    plan_strikes(world, chance, chance.choice([0, 1, 2, 3]), (5.0, LAGS_FOR_S), BESIDE_HANGS)
    world.go_on(LAGS_FOR_S)
    world.laggards.is_over = True
    come_to_rest(world)
    return world


def diverging_world(seed: int) -> World:
    """Play the history of replicas, of which some rank may come to have another state."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), work_s=chance.uniform(60.0, 120.0))
    scenario = replace(drawn, nodes_min=1, nodes_max=3, hosts=3, max_restarts=9, workers=workers)
    if seed % 3 == 0:
        scenario = replace(scenario, digest_steps=32, digest_steps_of_others=4)
    world = begin(seed, scenario, 1.0)
    for _ in range(chance.choice([0, 1, 1, 3])):
        world.queue.plan(chance.uniform(5.0, 60.0), _flip, world, chance.random())
    plan_strikes(world, chance, chance.choice([0, 0, 1, 2]), (5.0, 90.0), BESIDE_HANGS)
    world.go_on(120.0)
    come_to_rest(world)
    return world


def going_back_world(seed: int) -> World:
    """Play one of replicas whose job goes back to a kept step when they diverge."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), work_s=chance.uniform(60.0, 120.0))
    scenario = replace(
        drawn,
        nodes_min=chance.choice([1, 2]),
        nodes_max=3,
        hosts=3,
        max_restarts=chance.choice([1, 9, 9, 9]),
        keeps=chance.choice([Keeps.SHARED, Keeps.SHARED, Keeps.UNIQUE]),
        persist_every_s=chance.choice([None, 2, 2, 5, 10, 10, 600]),
        on_divergence=chance.choice([*OnDivergence, OnDivergence.QUARANTINE]),
        max_futile_rounds=seed % 3,
        workers=workers,
    )
    world = begin(seed, scenario, 1.0)
    if chance.random() < 0.5:
        world.queue.plan(chance.uniform(8.0, 12.0), strike, world, "worker fails")  # memory has a step from then on
    for _ in range(chance.choice([1, 2, 3])):
        at = chance.uniform(12.0, 60.0)
        world.queue.plan(at, _flip, world, chance.random())
        for _ in range(chance.choice([0, 1, 1])):
            world.queue.plan(at + chance.uniform(5.0, 12.0), _flip, world, chance.random())
        for _ in range(chance.choice([0, 0, 1])):
            name = chance.choice((*BESIDE_HANGS, *ENDS_OF_RUNS))
            world.queue.plan(at + chance.uniform(-4.0, 16.0), strike, world, name)
    world.go_on(120.0)
    come_to_rest(world)
    return world


def _flip(world: World, which: float) -> None:
    """Flip a bit in the state of one rank of the present round, `which` from 0 to 1, and look whether it is found."""
    if not world.is_running():
        return
    key, laws = (world.run.id, world.run.durable.round), world.invariants.replicas
    training = world.trainings.get(key)
    if training is not None:
        ranks = sum(own.workers for own in world.invariants.facts.formed[key].nodes)
        if training.replicas.flip(int(which * ranks)):
            world.queue.plan(laws.known_within(), laws.look_for, key)


def standby_world(seed: int) -> World:
    """Play the history of a few nodes, and of two coordinators that share an etcd."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    scenario = replace(draw_scenario(chance), standbys=1, skips_idle=False, skew=chance.choice([0.0, 0.001]))
    world = begin(seed, scenario, chance.choice([0.7, 1.0]))
    for _ in range(chance.randint(1, 6)):
        world.queue.plan(chance.uniform(0.0, FAULTS_FOR_S), take_over, world, chance.choice(list(TAKEOVERS)))
    plan_strikes(world, chance, chance.randint(0, 4), (0.0, FAULTS_FOR_S), BESIDE_TAKEOVERS)
    _outlast_faults(world, chance)
    return world


BESIDE_TAKEOVERS = [name for name in FAULTS if not name.startswith("disk")]
"""The faults beside takeovers: none of a disk, since coordinators that share an etcd keep no records on one."""


def _stand_still(world: World, doing: Doing) -> None:
    """Let the training of the present round do no step: for a while, or for ever if it hangs."""
    if not world.is_running():
        return
    training = world.trainings.get((world.run.id, world.run.durable.round))
    if training is not None:
        seconds = math.inf if doing.is_hang else world.chance.uniform(5.0, 60.0)
        limit_s = world.chance.choice([None, None, world.chance.uniform(10.0, 40.0)])
        training.hang(doing, seconds, None if limit_s is None else round(limit_s))


def foreign_coordinator_world(seed: int) -> World:
    """Play the history of nodes that look for their coordinator at two addresses, and find another at the second."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    world = begin(seed, replace(drawn, max_restarts=9, has_foreign_coordinator=True))
    world.until(lambda: world.is_running() or world.is_over(), within=60)
    plan_strikes(world, chance, chance.randint(1, 4), (0.0, 30.0), BESIDE_STRANGERS)
    world.go_on(75.0)
    come_to_rest(world)
    return world


BESIDE_STRANGERS = (
    *("coordinator killed", "coordinator gone for long", "coordinator stalls"),
    *("connection reset", "worker fails"),
)


def coincident_world(seed: int) -> World:
    """Play the history of a few healthy nodes with one coincidence."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    return play_coincidence(seed, chance, draw_calm_scenario(chance), COINCIDENCES)


def coincident_keeping_world(seed: int) -> World:
    """Play one with nodes that keep state."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), stubborn=0.0)
    scenario = replace(drawn, max_restarts=9, keeps=chance.choice(list(Keeps)), workers=workers)
    if seed % 2:
        scenario = replace(scenario, stop_timeout_s=SLOW_STOP_S)
    return play_coincidence(seed, chance, scenario, KEEPING)


def coincident_persisting_world(seed: int) -> World:
    """Play one with nodes that also write their state to a disk."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    return play_coincidence(seed, chance, draw_persisting_scenario(chance), PERSISTING)


def disk_losing_world(seed: int) -> World:
    """Play one in which somebody deletes steps that nodes have written to a disk."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_persisting_scenario(chance)
    scenario = replace(drawn, nodes_min=chance.choice([1, 2]), persist_every_s=chance.choice([2, 600, 600, 600]))
    return play_coincidence(seed, chance, scenario, LOST)


def torn_world(seed: int) -> World:
    """Play the history of a few nodes of which one seems to be gone, or is."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(drawn.workers, breaks=chance.choice([1.0, 0.5]), work_s=60.0)
    scenario = replace(drawn, max_restarts=9, hosts=4, nodes_min=1, nodes_max=chance.choice([2, 3, 4]), workers=workers)
    return play_coincidence(seed, chance, scenario, TORN)


def waiting_world(seed: int) -> World:
    """Play the history of workers that wait while nodes are missing."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    world = begin(seed, draw_waiting_scenario(chance))
    miss_one_for_long(world)
    world.go_on(WAITS_FOR_S)
    come_to_rest(world)
    return world


def play_coincidence(seed: int, chance: random.Random, scenario: Scenario, known: dict[str, Strike]) -> World:
    """Play the history of healthy nodes with one of the coincidences `known`."""
    world = begin(seed, scenario, 0.0)
    IdentityClaims(world)
    name = chance.choice(list(known))
    world.faults[name] += 1
    world.trace.note("-- coincidence: %s", name)
    known[name](world)
    world.go_on(FAULTS_FOR_S + chance.uniform(0.0, LAST_S))
    come_to_rest(world)
    return world


DARK_S = 5.0
"""How long a host is without power at most."""


def blackout_world(seed: int) -> World:
    """Play the history of nodes that lose power all at once, with their coordinator."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_persisting_scenario(chance)
    world = begin(seed, replace(drawn, persist_every_s=2))
    for _ in range(chance.choice([1, 2, 4])):
        world.queue.plan(chance.uniform(5.0, FAULTS_FOR_S), strike, world, "worker fails")
    for _ in range(chance.choice([1, 2])):
        world.queue.plan(chance.uniform(8.0, FAULTS_FOR_S), _black_out, world, chance)
    _outlast_faults(world, chance)
    return world


def _black_out(world: World, chance: random.Random) -> None:
    world.faults["blackout"] += 1
    world.daemon.crash(host=True)
    world.queue.plan(chance.uniform(0.0, DARK_S), world.daemon.start)
    for host in world.hosts.values():
        host.vanish()
        world.queue.plan(chance.uniform(0.0, DARK_S), host.boot)


def draw_preparing(seed: int) -> float:
    """Draw how long nodes prepare, from a generator of its own, so that other seeds play what they always played."""
    return random.Random(~seed).choice([0.0, 0.0, 1.0, 6.0, 20.0])  # noqa: S311 - repeatable on purpose


def large_world(seed: int, nodes: int, hours: float) -> World:
    """Play some hours of a cluster of `nodes`, with a fault every minute or so."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    world = begin(seed, large_scenario(nodes))
    at = 20.0
    while at < hours * 3600.0:
        world.queue.plan(at, strike, world, chance.choice(LARGE_FAULTS))
        world.queue.plan(at + FAULT_EVERY_S / 2, start_again, world)
        at += chance.expovariate(1.0 / FAULT_EVERY_S)
    world.go_on(hours * 3600.0)
    return world


BESIDE_HANGS = ("coordinator killed", "coordinator stalls", "worker fails", "node killed", "connection reset")

LARGE_FAULTS = [name for name in FAULTS if name not in {"coordinator gone for long", "namesake", "other settings"}]
"""The faults of a large cluster: none of those that people would need half an hour to repair."""


def start_again(world: World) -> None:
    """Do what operators do: start the nodeclients that are down, and so another run if the last one is over."""
    for host in world.hosts.values():
        if host.node == host.name:
            host.boot()


def mixed_world(seed: int) -> World:
    """Play one of a few nodes with up to three bursts of faults, and any settings.

    The other kinds each look closely at one thing. Here things meet that no other kind has together.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    scenario = _draw_mixed_scenario(chance)
    world = begin(seed, scenario, chance.choice([0.7, 1.0]))
    hosts = list(world.hosts.values())
    faults = [name for name in FAULTS if name != "other settings" and not (scenario.standbys and "disk" in name)]
    judge = [QuarantineNode, PardonNode]
    bursts, lasts_s = [chance.uniform(6.0, 50.0) for _ in range(chance.randint(1, 3))], chance.choice([0.3, 6.0, 50.0])
    for most, act in (
        (5, lambda: strike(world, chance.choice(faults))),
        (3 * scenario.standbys, lambda: take_over(world, chance.choice(list(TAKEOVERS)))),
        (2, lambda: chance.choice(hosts).workers.fail(-11)),
        (2, lambda: world.daemon.ask(chance.choice(judge)(chance.choice(hosts).node, "operator", ""))),
        (1, lambda: world.daemon.ask(PreflightJob(JOB, "operator", ""))),
        (2 * scenario.checks_health, lambda: chance.choice(hosts).fall_ill(chance.choice([0, 1, 2, 2, None]))),
        (2, lambda: strike(world, "operator drains")),
        (2, lambda: newcomer(world)),
        (2, lambda: _flip(world, chance.random())),
        (1, lambda: _stand_still(world, chance.choice(list(Doing)))),
        (scenario.persist_every_s is not None, lambda: disk_of_states_fails(world)),
        (scenario.keeps is not None, lambda: damage(world)),
    ):
        for _ in range(chance.randint(0, most)):
            world.queue.plan(chance.choice(bursts) + chance.uniform(0.0, lasts_s), act)
    world.go_on(chance.uniform(60.0, 105.0))
    for host in world.hosts.values():
        host.fall_ill(0)
    come_to_rest(world, HANGS_FOR_S)
    return world


def _draw_mixed_scenario(chance: random.Random) -> Scenario:
    drawn = chance.choice([draw_calm_scenario, draw_calm_scenario, draw_scenario])(chance)
    hosts, standbys, keeps = chance.randint(2, 5), chance.choice([0, 0, 1]), chance.choice([None, *Keeps, *Keeps])
    workers = stepping_workers(chance, drawn)
    return replace(
        drawn,
        hosts=hosts,
        nodes_min=chance.choice([1, hosts - 1]),
        nodes_max=hosts,
        max_restarts=chance.choice([3, 20, 20]),
        restart_window_s=chance.choice([None, WINDOW_S]),
        checks_health=chance.random() < 0.6,
        keeps=keeps,
        copies=keeps is not None and chance.random() < 0.2,
        persist_every_s=None if keeps is None else chance.choice([None, 2, 5, 10, 600]),
        on_divergence=chance.choice(list(OnDivergence)),
        scale_up=chance.choice([ScaleUp.NOW, *ScaleUp]),
        standbys=standbys,
        skips_idle=False,
        skew=chance.choice([0.0, 0.001]) if standbys else drawn.skew,
        policy=structs.replace(drawn.policy, preflight=chance.choice(list(PreflightWhen))),
        workers=replace(workers, work_s=chance.uniform(60.0, 120.0), fails_at_once=0.0, cannot_start=0.0),
    )


def come_to_rest(world: World, within_s: float = SETTLED_WITHIN_S) -> None:
    """End all faults, and check that each run ends or goes on. Raises `BrokenError`."""
    world.trace.note("-- all faults are over")
    world.wires.calm()
    world.on_done.clear()
    world.etcd.calm()
    world.disks.repair()
    for coordinator in world.coordinators:
        coordinator.disk.repair()
        coordinator.heal()
        coordinator.wake()
        coordinator.start()
        coordinator.spare()
    world.until(lambda: world.daemon.up, LED_WITHIN_S)
    daemon = world.daemon
    for host in world.hosts.values():
        host.slow_s = 0.0
        host.wake()
        host.heal()
        if host.gone:
            host.boot()
    for name in list(daemon.machine.cluster.durable.drained):
        daemon.ask(UndrainNode(name, "operator", ""))
    world.try_until(world.is_over, within_s)
    world.tell(Laws.judge_end)
