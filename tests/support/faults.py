"""What goes wrong in the simulated world, chosen from its seed."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.host import Host
from tests.support.world import World

FAULTS_FOR_S = 40.0
"""Faults begin within this time; each lasts some seconds at most."""

SETTLED_WITHIN_S = 180.0
"""After the last fault: an outage grace, a lease, a join timeout, two stops, and two rounds, each at its longest."""


def plan_faults(world: World, most: int = 8) -> None:
    """Put some faults on the world's agenda."""
    for _ in range(world.chance.randint(0, most)):
        host = world.chance.choice(list(world.hosts.values()))
        fault = world.chance.choice(FAULTS)
        world.after(world.between(0.0, FAULTS_FOR_S), fault, world, host)


def calm(world: World) -> None:
    """End all faults: heal the network, and start the nodeclients that are down for no reason of their own."""
    for host in world.hosts.values():
        world.heal(host)
        if host.agent is None and host.exit is None:
            host.boot()


def play(seed: int) -> World:
    """Make a world, let it go wrong, calm it, and let it come to its end."""
    world = World(seed)
    plan_faults(world)
    world.run_until(FAULTS_FOR_S + 15.0)
    calm(world)
    end = world.now + SETTLED_WITHIN_S
    world.run_until(end, lambda: _is_over(world))
    world.laws.judge_end()
    return world


def _is_over(world: World) -> bool:
    nobody = all(host.agent is None for host in world.hosts.values())
    return nobody and all(run.state.ended for run in world.coordinator.jobs.values())


def _worker_fails(world: World, host: Host) -> None:
    del world
    host.fail_a_worker()


def _node_killed(world: World, host: Host) -> None:
    host.die(seen=True)
    _maybe_boot(world, host)


def _host_gone(world: World, host: Host) -> None:
    host.die(seen=False)
    _maybe_boot(world, host)


def _leaves(world: World, host: Host) -> None:
    host.leave()
    if world.chance.random() < 0.3:
        world.after(world.between(0.0, 2.0), host.leave)  # impatient


def _session_lost(world: World, host: Host) -> None:
    del world
    host.drop_session()


def _cut_off(world: World, host: Host) -> None:
    host.cut = True
    world.after(world.between(0.1, 12.0), world.heal, host)


def _coordinator_cut_off(world: World, host: Host) -> None:
    del host
    lasts = world.chance.choice([world.between(0.1, 12.0), world.between(20.0, 40.0)])
    for other in world.hosts.values():
        other.cut = True
        world.after(lasts, world.heal, other)


def _coordinator_stalls(world: World, host: Host) -> None:
    del host
    world.stall(world.between(0.1, 8.0))


def _coordinator_restarts(world: World, host: Host) -> None:
    del host
    world.restart()


def _maybe_boot(world: World, host: Host) -> None:
    if world.chance.random() < 0.7:
        world.after(world.chance.choice([world.between(0.01, 0.9), world.between(1.0, 20.0)]), host.boot)


FAULTS: list[Callable[[World, Host], None]] = [
    _worker_fails,
    _worker_fails,
    _node_killed,
    _host_gone,
    _leaves,
    _session_lost,
    _cut_off,
    _coordinator_cut_off,
    _coordinator_stalls,
    _coordinator_restarts,
]
