"""Where a scenario of the corpus begins: a calm cluster that trains. What goes wrong is the scenario's own doing."""

from collections.abc import Callable
from typing import Any

from tests.sim.scenario import Scenario, Workers
from tests.sim.world import World

CALM = Workers(stubborn=0.0, slow_to_die=0.0)
"""Workers that heed SIGTERM, and fail when a peer is gone."""

BLOCKED = Workers(stubborn=1.0, slow_to_die=0.0, breaks=0.0)
"""Workers that hang in a collective that never ends when a peer is gone, and heed no SIGTERM."""

AT_ONCE = 1.0
"""Seconds: some messages, the half second that workers get when a round has failed, and no timer beside."""

LEASE_S = 5.0
"""The silence after which a node is lost."""


def furnish(hosts: int, **settings: Any) -> World:
    """Return a world in which nothing runs yet: calm and with room for all, unless `settings` say otherwise."""
    calm: dict[str, Any] = {"nodes_max": hosts, "arrive_within_s": 0.5, "workers": CALM}
    return World(seed=1, scenario=Scenario(hosts=hosts, **(calm | settings)))


def begin(hosts: int, **settings: Any) -> World:
    """Return a world in which the first round runs, and all others wait."""
    world = furnish(hosts, **settings)
    world.boot()
    world.go_on(world.scenario.arrive_within_s)
    world.until(runs(world, 1))
    return world


def runs(world: World, number: int) -> Callable[[], bool]:
    """Return whether this round runs, to wait for it."""
    return lambda: world.is_running() and world.run.durable.round == number


def trains(world: World, *nodes: str) -> Callable[[], bool]:
    """Return whether a round of these nodes runs, in the order of their group ranks, to wait for it."""
    return lambda: world.is_running() and world.order == list(nodes)
