"""Coincidences of a session that closes and of workers that end: some prove a node's end, others only look like it.

They strike healthy clusters. A host whose connection is torn cannot come back for a while, but its workers live.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinatord.core.rounds.values.admin_requests import RestartJob
from tests.sim.coincidences import in_round, once, trains
from tests.sim.faults import Strike
from tests.sim.host import Host
from tests.sim.world import JOB, World

AROUND_S = 0.6
"""The longest time between the two parts of a coincidence: workers whose peer is gone fail within half of it."""


AWAY_AFTER_S = 4.0
"""The time after which the coordinator goes away: within the lease of the node that is cut off."""

MOST = 0.7
"""The share of these histories in which the coordinator goes away."""

LATE_S = 0.3
"""The delay of a late message: so short that its node still counts as punctual."""


def _tear(world: World, host: Host) -> None:
    """Tear a host's connection, and cut the host off: for a moment, or for longer than it is waited for."""
    host.reset()
    host.cut_off()
    world.queue.plan(world.chance.choice([world.chance.uniform(0.2, 0.9), world.chance.uniform(1.0, 4.0)]), host.heal)


def _soon(world: World) -> float:
    return world.chance.choice([0.0, AROUND_S * world.chance.random()])


def _both(world: World, one: str, other: str) -> None:
    """Let two faults strike two hosts of a round, shortly after one another; each is a key of `_DEEDS`."""

    def act() -> None:
        hosts = in_round(world)
        first = world.chance.choice(hosts)
        second = world.chance.choice([host for host in hosts if host is not first] or hosts)
        world.queue.plan(_soon(world), _DEEDS[one], world, first)
        world.queue.plan(_soon(world), _DEEDS[other], world, second)

    once(world, lambda: trains(world), act)


_DEEDS: dict[str, Callable[[World, Host], object]] = {
    "is torn": _tear,
    "fails": lambda _, host: host.workers.fail(),
    "is killed": lambda _, host: host.kill(),
    "vanishes": lambda _, host: host.vanish(),
    "leaves": lambda _, host: host.leave(),
    "restarts": lambda world, _: world.daemon.ask(RestartJob(JOB, "operator", "")),
}


def _fails_while_torn(world: World) -> None:
    """Let a worker of a node fail that cannot report it."""

    def act() -> None:
        host = world.chance.choice(in_round(world))
        _tear(world, host)
        world.queue.plan(_soon(world), host.workers.fail)

    once(world, lambda: trains(world), act)


def _fails_while_stopped(world: World) -> None:
    """Let a worker of a node fail whose nodeclient is stopped: its connection is open, and its other workers live."""

    def act() -> None:
        host = world.chance.choice(in_round(world))
        host.pause()
        world.queue.plan(_soon(world), host.workers.fail)
        world.queue.plan(world.chance.uniform(0.5, 8.0), host.wake)

    once(world, lambda: trains(world), act)


def _ends_them_unheard(world: World) -> None:
    """Cut a node off until it has ended its workers, tear another one's connection, and let the first come back.

    Where the coordinator is away meanwhile, it cannot know when these workers ended.
    """

    def act() -> None:
        hosts = in_round(world)
        first, second = hosts[0], hosts[-1]
        first.cut_off()
        if world.chance.random() < MOST:
            world.queue.plan(AWAY_AFTER_S, world.daemon.crash)
        once(world, lambda: not first.workers.alive, lambda: back(first, second))

    def back(first: Host, second: Host) -> None:
        world.daemon.start()
        world.queue.plan(_soon(world), first.heal)
        once(world, lambda: second.session is not None and second.session.established, lambda: tear(second))

    def tear(second: Host) -> None:
        world.queue.plan(_soon(world), _tear, world, second)

    once(world, lambda: trains(world), act)


def _stop_comes_late(world: World) -> None:
    """Restart a job; one node gets the message late, after its collectives failed; tear another's connection."""

    def act() -> None:
        hosts = in_round(world)
        hosts[0].slow_s = LATE_S
        world.queue.plan(10 * LATE_S, setattr, hosts[0], "slow_s", 0.0)
        world.daemon.ask(RestartJob(JOB, "operator", ""))
        world.queue.plan(_soon(world), _tear, world, hosts[-1])

    once(world, lambda: trains(world), act)


def _killed_while_coordinator_is_away(world: World) -> None:
    """Kill a node while the coordinator is away, and tear another one's connection when it is back."""

    def act() -> None:
        hosts = in_round(world)
        world.daemon.crash()
        hosts[0].kill()
        world.queue.plan(_soon(world), world.daemon.start)
        once(world, lambda: world.daemon.up and in_round(world), lambda: tear(hosts[-1]))

    def tear(host: Host) -> None:
        world.queue.plan(4 * _soon(world), _tear, world, host)

    once(world, lambda: trains(world), act)


TORN: dict[str, Strike] = {
    "one is killed, another is asked to leave": lambda world: _both(world, "is killed", "leaves"),
    "one is torn, another one's worker fails": lambda world: _both(world, "is torn", "fails"),
    "one is torn, another is killed": lambda world: _both(world, "is torn", "is killed"),
    "one is torn, another vanishes": lambda world: _both(world, "is torn", "vanishes"),
    "one is torn, another leaves": lambda world: _both(world, "is torn", "leaves"),
    "one is torn when the job is restarted": lambda world: _both(world, "is torn", "restarts"),
    "two are torn": lambda world: _both(world, "is torn", "is torn"),
    "one is torn, and its worker fails": _fails_while_torn,
    "a worker of one that is stopped fails": _fails_while_stopped,
    "one is told late of a restart, another is torn": _stop_comes_late,
    "one ends its workers unheard, another is torn": _ends_them_unheard,
    "one is killed unseen, another is torn": _killed_while_coordinator_is_away,
}
