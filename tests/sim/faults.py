"""Faults of the simulated world: each picks its victim by chance, and plans its own end."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.values.admin_requests import DrainNode, ForgetJob, RestartJob, StopJob, UndrainNode
from tests.sim.disk import CrashPoint, Fault
from tests.sim.host import Host
from tests.sim.kept_disk import DiskFault
from tests.sim.workers import Training
from tests.sim.world import JOB, World

HOUR_S = 3600.0

DISK_FAILS_S_MAX = 40.0
"""The longest failure of a disk: longer than any wait of a node, be it for a stop, other nodes, or an outage grace."""

LOOK_AGAIN_S = 0.1
"""The interval at which a fault that waits for its moment checks for it."""

Strike = Callable[[World], object]


def strike(world: World, name: str) -> None:
    """Make a fault of a cluster happen, and count it."""
    happen(world, name, FAULTS[name])


def happen(world: World, name: str, fault: Strike) -> None:
    """Make a fault of any kind happen, and count it by its name."""
    world.faults[name] += 1
    world.trace.note("-- fault: %s", name)
    world.touch()
    fault(world)


def damage(world: World) -> None:
    """Flip a bit of the state that some node keeps."""
    memories = [host.memory for host in world.hosts.values() if host.memory is not None]
    if memories and world.chance.choice(memories).damage():
        world.faults["memory damaged"] += 1


def leave_with_copy(world: World) -> None:
    """Ask a node to leave, together with the one that has the copy of its shards."""
    run = world.daemon.machine.jobs.get(JOB) if world.daemon.up else None
    pairs = [] if run is None else [(node, kept_of(run).copy_of(node)) for node in run.durable.order]
    copied = [(node, found[0]) for node, found in pairs if found is not None]
    if copied:
        world.faults["node and its copy leave"] += 1
        pair = world.chance.choice(copied)
        for host in world.hosts.values():
            if host.node in pair:
                host.leave()


def disk_of_states_fails(world: World) -> None:
    """Let the directory for steps be full, hang, or be missing on one host, for a while."""
    fault = world.chance.choice([*DiskFault, None])
    world.faults["disk of states fails"] += 1
    world.trace.note("-- fault: the disk for steps: %s", fault or "not mounted")
    if fault is None:
        host = _victim(world).name
        world.disks.unmount(host)
        world.queue.plan(_soon(world), world.disks.mount, host)
    else:
        world.disks.break_down(fault)
        world.queue.plan(_soon(world), world.disks.heal)


def _victim(world: World) -> Host:
    return world.chance.choice(list(world.hosts.values()))


def _soon(world: World) -> float:
    """Draw when something is over: often at once, sometimes beyond a lease."""
    return world.chance.choice([world.chance.uniform(0.01, 0.9), world.chance.uniform(1.0, 15.0)])


# Workers


def _worker_fails(world: World) -> None:
    _victim(world).workers.fail(world.chance.choice([1, 3, -9, -11]))


def _two_workers_fail(world: World) -> None:
    _worker_fails(world)
    world.queue.plan(world.chance.random(), _worker_fails, world)


def _workers_hang(world: World) -> None:
    for host in world.hosts.values():
        host.workers.harden()
    _worker_fails(world)


# Nodes


def _node_killed(world: World) -> None:
    host = _victim(world)
    host.kill()
    _maybe_boot(world, host)


def _last_node_killed(world: World) -> None:
    """Kill the node whose workers are the last to end, when those of all others have."""

    def look(training: Training) -> None:
        late = [host for host in training.hosts.values() if host.workers.training is training and host.workers.alive]
        if len(late) > 1:
            world.queue.plan(LOOK_AGAIN_S, look, training)
        elif late and len(training.hosts) > 1:
            late[0].kill()
            world.queue.plan(_soon(world), late[0].boot)

    world.on_done.append(look)


def _host_gone(world: World) -> None:
    host = _victim(world)
    host.vanish()
    _maybe_boot(world, host)


def _two_hosts_gone(world: World) -> None:
    _host_gone(world)
    _host_gone(world)


def _maybe_boot(world: World, host: Host) -> None:
    if world.chance.random() < world.comes_back:
        world.queue.plan(_soon(world), host.boot)


def _leaves(world: World) -> None:
    host = _victim(world)
    host.leave()
    if world.chance.random() < 0.3:
        world.queue.plan(world.chance.uniform(0.0, 2.0), host.leave)  # impatient
    _maybe_boot(world, host)


def _namesake(world: World) -> None:
    host = _victim(world)
    name = f"{host.node}-twin"
    twin = world.hosts.get(name) or world.add_host(name, host.node)
    twin.boot()


def _arrives(world: World) -> None:
    down = [host for host in world.hosts.values() if host.agent is None and host.name == host.node]
    if down:
        world.chance.choice(down).boot()


def _node_stops(world: World) -> None:
    host = _victim(world)
    host.pause()
    world.queue.plan(_soon(world), host.wake)


# Operators


def _operator_drains(world: World) -> None:
    host = _victim(world)
    if world.chance.random() < 0.3:
        world.daemon.doom(CrashPoint.AFTER)
        _start_later(world, _soon(world))
    world.daemon.ask(DrainNode(host.node, "operator", "", ahead=world.chance.random() < 0.5))
    world.queue.plan(_soon(world), world.daemon.ask, UndrainNode(host.node, "operator", ""))
    _maybe_boot(world, host)


def _operator_stops(world: World) -> None:
    world.daemon.ask(StopJob(JOB, "operator", ""))
    for host in world.hosts.values():
        _maybe_boot(world, host)


# The network


def _all_reset(world: World) -> None:
    for host in world.hosts.values():
        host.reset()


def _half_open(world: World) -> None:
    host = _victim(world)
    if host.session is not None:
        host.trouble()
        host.ended(host.session)


def _cut_off_one_way(world: World) -> None:
    up = world.chance.random() < 0.5
    _cut(world, _victim(world), up=up, down=not up)


def _cut(world: World, host: Host, *, up: bool = True, down: bool = True) -> None:
    host.cut_off(up=up, down=down)
    world.queue.plan(_soon(world), host.heal)


def _switch_fails(world: World) -> None:
    hosts = list(world.hosts.values())
    for host in world.chance.sample(hosts, (len(hosts) + 1) // 2):
        _cut(world, host)


def _coordinator_cut_off(world: World) -> None:
    lasts = world.chance.choice([_soon(world), 2 * world.scenario.policy.outage_grace_s * world.chance.random()])
    for host in world.hosts.values():
        host.cut_off()
        world.queue.plan(lasts, host.heal)


def _slow_network(world: World) -> None:
    for host in world.hosts.values():
        host.slow_s = world.chance.choice([0.2, 1.0, 3.0]) * world.chance.random()
        host.trouble()
        world.queue.plan(_soon(world), _quicken, host)


def _quicken(host: Host) -> None:
    host.slow_s = 0.0
    host.trouble()


def _other_settings(world: World) -> None:
    """Kill all nodes, and start them with another flag."""
    world.spec = replace(world.spec, max_restarts=world.spec.max_restarts + 1)
    for host in world.hosts.values():
        host.kill()
        world.queue.plan(_soon(world), host.boot)


# The coordinator


def _start_later(world: World, seconds: float) -> None:
    world.queue.plan(seconds, world.daemon.start)


def _crash(world: World) -> None:
    world.daemon.crash()
    _start_later(world, _soon(world))


def _doom(world: World) -> None:
    world.daemon.doom(world.chance.choice(list(CrashPoint)))
    # Another fault makes a commit more likely.
    strike(world, world.chance.choice(["worker fails", "node killed", "leaves", "arrives"]))
    world.queue.plan(3.0, world.daemon.crash)
    _start_later(world, 3.0 + _soon(world))


def _host_of_coordinator_gone(world: World) -> None:
    world.daemon.crash(host=True)
    _start_later(world, world.chance.uniform(0.5, 30.0))


def _long_gone(world: World) -> None:
    world.daemon.crash()
    _start_later(world, world.chance.uniform(0.5, 1.5) * world.scenario.policy.outage_grace_s)


def _flaps(world: World) -> None:
    at = 0.0
    for _ in range(world.chance.randint(2, 5)):
        world.queue.plan(at, world.daemon.crash)
        _start_later(world, at + 0.3)
        at += world.chance.uniform(0.3, 3.0)


def _stalls(world: World) -> None:
    world.daemon.pause()
    world.queue.plan(world.chance.choice([_soon(world), world.chance.uniform(4.0, 7.0)]), world.daemon.wake)


def _wall_clock_steps(world: World) -> None:
    world.daemon.wall_offset += world.chance.choice([-1.0, 1.0]) * world.chance.choice([2.0, 60.0, 5 * HOUR_S])


# The disk


def _disk_fails(world: World) -> None:
    world.daemon.disk.break_down(world.chance.choice([Fault.FULL, Fault.READ_ONLY]))
    world.queue.plan(_soon(world), world.daemon.disk.repair)


def _disk_fails_for_long(world: World) -> None:
    """Let a decision wait for long until it can be recorded, and lose a host meanwhile."""
    lasts = world.chance.uniform(10.0, DISK_FAILS_S_MAX)
    world.daemon.disk.break_down(world.chance.choice(list(Fault)))
    world.queue.plan(lasts, world.daemon.disk.repair)
    strike(world, world.chance.choice(["worker fails", "node killed", "leaves", "arrives"]))
    strike_later = world.chance.choice(["host gone", "cut off", "node killed"])
    world.queue.plan(lasts * world.chance.random(), strike, world, strike_later)


def _disk_hangs(world: World) -> None:
    world.daemon.disk.break_down(Fault.HANGS)
    world.queue.plan(_soon(world), world.daemon.disk.repair)


FAULTS: dict[str, Strike] = {
    "worker fails": _worker_fails,
    "two workers fail": _two_workers_fail,
    "workers hang": _workers_hang,
    "node killed": _node_killed,
    "last node killed": _last_node_killed,
    "host gone": _host_gone,
    "two hosts gone": _two_hosts_gone,
    "leaves": _leaves,
    "namesake": _namesake,
    "arrives": _arrives,
    "other settings": _other_settings,
    "nodeclient stopped": _node_stops,
    "operator drains": _operator_drains,
    "operator restarts": lambda world: world.daemon.ask(RestartJob(JOB, "operator", "")),
    "operator stops": _operator_stops,
    "operator forgets": lambda world: world.daemon.ask(ForgetJob(JOB, "operator", "")),
    "connection reset": lambda world: _victim(world).reset(),
    "all connections reset": _all_reset,
    "connection half open": _half_open,
    "cut off": lambda world: _cut(world, _victim(world)),
    "cut off one way": _cut_off_one_way,
    "switch fails": _switch_fails,
    "coordinator cut off": _coordinator_cut_off,
    "network slow": _slow_network,
    "coordinator killed": _crash,
    "coordinator killed in a commit": _doom,
    "coordinator's host gone": _host_of_coordinator_gone,
    "coordinator gone for long": _long_gone,
    "coordinator flaps": _flaps,
    "coordinator stalls": _stalls,
    "wall clock steps": _wall_clock_steps,
    "disk fails": _disk_fails,
    "disk hangs": _disk_hangs,
    "disk fails for long": _disk_fails_for_long,
}
"""The faults by name. Each may strike at any time, also while others last."""
