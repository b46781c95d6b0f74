"""Faults of coordinators that share an etcd: of their processes, of their network, and of etcd itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.disk import CrashPoint
from tests.sim.etcd_coordinator import EtcdCoordinator
from tests.sim.faults import Strike, happen

if TYPE_CHECKING:
    from tests.sim.world import World


def etcd_coordinators(world: World) -> list[EtcdCoordinator]:
    """Return all coordinators."""
    return [coordinator for coordinator in world.coordinators if isinstance(coordinator, EtcdCoordinator)]


def _leader(world: World) -> EtcdCoordinator:
    return next(coordinator for coordinator in etcd_coordinators(world) if coordinator is world.daemon)


def _draw_coordinator(world: World) -> EtcdCoordinator:
    """Draw a coordinator: the leader more often than not."""
    return world.chance.choice([_leader(world), *etcd_coordinators(world)])


def _draw_duration(world: World) -> float:
    """Draw how long a fault lasts: often less than a lease, sometimes several."""
    return world.chance.choice([world.chance.uniform(0.01, 3.0), world.chance.uniform(3.0, 8.0), 20.0])


def _killed(world: World) -> None:
    coordinator = _draw_coordinator(world)
    coordinator.crash(host=world.chance.random() < 0.3)
    world.queue.plan(_draw_duration(world), coordinator.start)


def _all_killed(world: World) -> None:
    for coordinator in etcd_coordinators(world):
        coordinator.crash()
        world.queue.plan(world.chance.uniform(0.1, 5.0), coordinator.start)


def _killed_in_commit(world: World) -> None:
    coordinator = _leader(world)
    coordinator.doom(world.chance.choice(list(CrashPoint)))
    world.chance.choice(list(world.hosts.values())).reset()
    world.chance.choice(list(world.hosts.values())).workers.fail()
    world.queue.plan(_draw_duration(world), coordinator.start)


def _paused(world: World) -> None:
    coordinator = _draw_coordinator(world)
    coordinator.pause()
    world.queue.plan(_draw_duration(world), coordinator.wake)


def _paused_in_commit(world: World) -> None:
    """Stop the leader just when it has decided something."""
    coordinator = _leader(world)
    world.chance.choice(list(world.hosts.values())).workers.fail()
    world.queue.plan(world.chance.uniform(0.0, 0.05), coordinator.pause)
    world.queue.plan(0.1 + _draw_duration(world), coordinator.wake)


def _ended(world: World) -> None:
    coordinator = _draw_coordinator(world)
    coordinator.stop()
    world.queue.plan(1.0 + _draw_duration(world), coordinator.start)


def _cut(world: World, *, etcd: bool, nodes: bool) -> None:
    coordinator = _draw_coordinator(world)
    coordinator.cut_off(etcd=etcd, nodes=nodes)
    world.queue.plan(_draw_duration(world), coordinator.heal)


def _etcd_elects(world: World) -> None:
    world.etcd.stop()
    world.queue.plan(world.chance.uniform(0.2, 3.0), world.etcd.go_on)


def _etcd_away(world: World) -> None:
    world.etcd.stop()
    world.queue.plan(_draw_duration(world), world.etcd.go_on)


def _etcd_slow(world: World) -> None:
    world.etcd.slow_s = world.chance.choice([0.5, 2.5])
    world.queue.plan(_draw_duration(world), world.etcd.speed_up)


def _etcd_full(world: World) -> None:
    world.etcd.full = True
    world.queue.plan(_draw_duration(world), world.etcd.make_room)


TAKEOVERS: dict[str, Strike] = {
    "coordinator of several killed": _killed,
    "all coordinators killed": _all_killed,
    "leader killed in a commit": _killed_in_commit,
    "coordinator of several paused": _paused,
    "leader paused in a commit": _paused_in_commit,
    "coordinator of several ended": _ended,
    "leader steps down": lambda world: world.etcd.end_term(),
    "coordinator cut off from etcd": lambda world: _cut(world, etcd=True, nodes=False),
    "coordinator cut off from nodes": lambda world: _cut(world, etcd=False, nodes=True),
    "coordinator cut off from all": lambda world: _cut(world, etcd=True, nodes=True),
    "etcd elects": _etcd_elects,
    "etcd away": _etcd_away,
    "etcd slow": _etcd_slow,
    "etcd full": _etcd_full,
}
"""These faults by name. Each may strike at any time, also while others last."""


def take_over(world: World, name: str) -> None:
    """Make one of these faults happen, and count it."""
    happen(world, name, TAKEOVERS[name])
