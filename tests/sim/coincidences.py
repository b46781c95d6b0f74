"""Faults that matter only together, or at one moment: chance alone plays each of them too rarely.

Each is begun once, and waits for its moment. They strike healthy clusters, so that nothing else explains what follows.
`faults` has those that may strike at any time.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.admin_requests import RestartJob, StopJob
from coordinatord.core.rounds.values.records import RoundFormed, RoundStopped
from coordinatord.protocol.messages import Phase
from nodeclient.core.reuse import PARK_S
from tests.sim.disk import CrashPoint, Fault
from tests.sim.faults import LOOK_AGAIN_S, Strike
from tests.sim.host import Host
from tests.sim.kept_copies import Keeps
from tests.sim.workers import Training
from tests.sim.world import JOB, World

LOOKS_FOR_S = 40.0
"""How long a coincidence waits for its moment before it is given up."""

OUTAGE_S = 20.0
"""How long a failure of the disk lasts: much longer than a lease."""


def once(world: World, holds: Callable[[], object], act: Callable[[], object]) -> None:
    """Call `act` as soon as `holds` returns true."""

    def look() -> None:
        if holds():
            act()
        elif world.queue.time < until:
            world.queue.after(LOOK_AGAIN_S, look)

    until = world.queue.time + LOOKS_FOR_S
    look()


def in_round(world: World) -> list[Host]:
    """Return the hosts whose nodes have a part in the round that is on."""
    run = world.daemon.machine.jobs.get(JOB) if world.daemon.up else None
    inside = {member.node for member in run.roll.inside} if run is not None else set()
    return [host for host in world.hosts.values() if host.node in inside and host.agent is not None]


def trains(world: World) -> bool:
    """Whether a round is on, and all of its workers live."""
    return world.is_running() and all(host.workers.alive for host in in_round(world))


def newcomer(world: World) -> Host:
    """Start a node on a new host, and return that."""
    host = world.add_host(f"n{len(world.hosts) + 1}")
    host.boot()
    return host


# The end of a process, and nothing else


def _process_dies(world: World) -> None:
    """Kill a node that was well all its life."""
    once(world, lambda: trains(world), lambda: world.chance.choice(in_round(world)).kill())


def _host_dies(world: World) -> None:
    """Cut the power of a host that was well all its life."""
    once(world, lambda: trains(world), lambda: world.chance.choice(in_round(world)).vanish())


# The script

ALIKE = (1, "ValueError: sample 4711 has no label"), (-11, "")
"""How all workers of a round may fail: by an exit code with what they have written."""


def _workers_fail_alike(world: World) -> None:
    """Let all workers of a round fail with the same error."""

    def fail() -> None:
        world.trainings[world.run.id, world.run.durable.round].fail_alike(*world.chance.choice(ALIKE))

    once(world, lambda: trains(world), fail)


# The end of the training


def when_some_are_done(world: World, act: Callable[[list[Host], list[Host]], None]) -> None:
    """Call `act` with the nodes that have done their part and those that have not, once there are both."""

    def split(training: Training) -> tuple[list[Host], list[Host]]:
        hosts = [host for host in in_round(world) if host.workers.round == training.key]
        members = world.run.members
        done = [host for host in hosts if members[host.node].durable.succeeded]
        return done, [host for host in hosts if host.workers.alive]

    def look(training: Training) -> None:
        once(world, lambda: all(split(training)), lambda: act(*split(training)))

    world.on_done.append(look)


def _done_node_dies(world: World) -> None:
    """Kill a node that has done its part, and let a worker of another one fail before the first is missed.

    The others hang, so the round is not over by then.
    """

    def act(done: list[Host], late: list[Host]) -> None:
        world.chance.choice(done).kill()
        for host in late:
            host.workers.harden()
        world.queue.plan(world.chance.uniform(0.5, 1.0), world.chance.choice(late).workers.fail)

    when_some_are_done(world, act)


def _newcomer_when_some_are_done(world: World) -> None:
    """Start another node when one has done its part."""

    def act(_done: list[Host], _late: list[Host]) -> None:
        newcomer(world)

    when_some_are_done(world, act)


# The store


def _store_set_back(world: World) -> None:
    """Set the store back by one round."""
    state = world.chance.choice([State.STARTING, State.RUNNING])

    def take_copy() -> None:
        copy, number = world.daemon.disk.copy(), world.run.durable.round
        once(world, lambda: trains(world), lambda: world.daemon.ask(RestartJob(JOB, "operator", "")))
        once(world, lambda: world.is_running() and world.run.durable.round == number + 1, lambda: set_back(copy))

    def set_back(copy: bytes) -> None:
        world.daemon.set_store_back(copy)
        world.queue.plan(world.chance.random(), world.daemon.start)

    daemon = world.daemon
    once(world, lambda: daemon.up and world.state is state and not daemon.writing, take_copy)


def _failures_unrecorded(world: World) -> None:
    """Let workers of two nodes fail while nothing can be recorded, and kill the coordinator when that is known."""
    daemon, chance = world.daemon, world.chance

    def break_down() -> None:
        daemon.disk.break_down(chance.choice(list(Fault)))
        newcomer(world)  # so that there is something to record
        once(world, lambda: daemon.machine.store_error is not None, fail)

    def fail() -> None:
        for host in in_round(world):
            host.workers.harden()
            world.queue.plan(chance.random(), host.workers.fail, chance.choice([1, 3, -9]))
        world.queue.plan(chance.uniform(0.5, 2.0), daemon.disk.repair)
        daemon.doom(CrashPoint.AFTER, RoundStopped)
        once(world, lambda: not daemon.up, lambda: world.queue.plan(chance.random(), daemon.start))

    once(world, lambda: trains(world), break_down)


def _node_dies_unrecorded(world: World) -> None:
    """Cut a host's power long after the disk broke down, and long before it is repaired."""
    daemon, chance = world.daemon, world.chance

    def break_down() -> None:
        daemon.disk.break_down(chance.choice(list(Fault)))
        newcomer(world)
        world.queue.plan(OUTAGE_S * chance.uniform(0.3, 0.9), chance.choice(in_round(world)).vanish)
        world.queue.plan(OUTAGE_S, daemon.disk.repair)

    once(world, lambda: trains(world), break_down)


# No coordinator for a moment


def _fails_unheard(world: World) -> None:
    """Let a worker fail while there is no coordinator for a moment."""

    def act() -> None:
        world.daemon.crash()
        world.queue.plan(world.chance.random(), world.chance.choice(hosts()).workers.fail)
        world.queue.plan(world.chance.uniform(1.0, 4.0), world.daemon.start)

    def hosts() -> list[Host]:
        return [host for host in world.hosts.values() if host.workers.alive]

    once(world, lambda: trains(world), act)


# The end of the run


def _misses_the_end(world: World) -> None:
    """Cut a node off, and let it come back when the run is over, or when another one has begun."""

    def cut() -> None:
        host = world.chance.choice(in_round(world))
        host.cut_off()
        world.daemon.ask(StopJob(JOB, "operator", ""))
        others = [other for other in world.hosts.values() if other is not host]
        over = host.heal if world.chance.random() < 0.5 else lambda: begin_anew(host, others)
        once(world, lambda: world.run.durable.state.ended and not any(other.agent for other in others), over)

    def begin_anew(host: Host, others: list[Host]) -> None:
        for other in others:
            other.boot()
        once(world, lambda: not world.run.durable.state.ended, host.heal)

    once(world, lambda: trains(world) and (world.scenario.keeps is None or has_steps(world)), cut)


# Tokens


REVOKED_AFTER_S = 0.04
"""When a token is revoked after its node was torn off: the coordinator has seen it, and the node is not back."""


def _token_revoked(world: World) -> None:
    """Revoke the token of a node, which has another one by then.

    With odd seeds the coordinator is away then, and with every other even one the node.
    """

    def act() -> None:
        host = world.chance.choice(in_round(world))
        token, host.token = host.token, f"another token of {host.node}"
        if world.seed % 2:
            world.daemon.crash()
            world.invariants.identities.revoked(host.node, host.incarnation)
            world.queue.after(1.0, world.daemon.start)
        else:
            if world.seed % 4:
                host.reset()
            world.queue.after(REVOKED_AFTER_S, world.daemon.revoke, host, token)

    once(world, lambda: trains(world), act)


# State that is kept


def _holder_leaves_for_a_moment(world: World) -> None:
    """Cut off a node that keeps state at the moment in which the next round is formed."""

    def fail() -> None:
        host = world.chance.choice(in_round(world))
        host.workers.fail()
        once(world, lambda: host.agent is not None and host.agent.phase is Phase.FAILED, lambda: go(host))

    def go(host: Host) -> None:
        host.reset()
        host.cut_off()
        world.queue.plan(world.chance.uniform(0.8, 4.0), host.heal)

    once(world, lambda: trains(world) and has_steps(world), fail)


def _holder_misses_a_round(world: World) -> None:
    """Stop a nodeclient that keeps state for so long that a round begins without it, from an older step."""

    def stop() -> None:
        host, number = world.chance.choice(in_round(world)), world.run.durable.round
        host.pause()
        once(world, lambda: trains(world) and world.run.durable.round > number, lambda: wake(host))

    def wake(host: Host) -> None:
        world.queue.after(1.5 * world.chance.random(), host.wake)

    once(world, lambda: trains(world), lambda: world.daemon.ask(RestartJob(JOB, "operator", "")))
    once(world, lambda: trains(world) and world.run.durable.round == 2 and has_steps(world), stop)


def _lost_in_a_planned_stop(world: World) -> None:
    """Cut off a node as its workers are about to save, until its round may have ended without it."""

    def stop() -> None:
        host = world.chance.choice(in_round(world))
        host.workers.harden()
        world.daemon.ask(RestartJob(JOB, "operator", ""))
        once(world, lambda: host.agent is not None and host.agent.phase is Phase.STOPPING, lambda: cut(host))

    def cut(host: Host) -> None:
        host.reset()
        host.cut_off()
        world.queue.plan(world.scenario.policy.reconnect_grace_s + 0.5 * world.chance.random(), host.heal)

    once(world, lambda: trains(world) and has_steps(world), stop)


def has_steps(world: World) -> bool:
    """Whether all workers of the present round have done steps, and all shards of one of these are known to be kept."""
    training = world.trainings.get((world.run.id, world.run.durable.round))
    whole = kept_of(world.run).index.newest_whole
    kept = world.scenario.keeps is Keeps.SHARED or (whole is not None and whole.round == world.run.durable.round)
    return kept and training is not None and training.stepped() is not None


def _killed_when_formed(world: World) -> None:
    """Replace a node, and kill the coordinator when the next round is recorded and not yet sent."""

    def replace() -> None:
        host = world.chance.choice(in_round(world))
        host.kill()
        host.boot()
        world.daemon.doom(CrashPoint.AFTER, RoundFormed)
        once(world, lambda: not world.daemon.up, world.daemon.start)

    once(world, lambda: trains(world) and has_steps(world), replace)


# Too few nodes


def miss_one_for_long(world: World) -> None:
    """Take a host away that the round needs, for longer than a worker waits for another round."""

    def take_away() -> None:
        host = world.chance.choice(in_round(world))
        host.vanish()
        world.queue.plan(world.chance.uniform(PARK_S + 10.0, PARK_S + 40.0), host.boot)

    once(world, lambda: trains(world) and has_steps(world), take_away)


COINCIDENCES: dict[str, Strike] = {
    "process dies": _process_dies,
    "host dies": _host_dies,
    "workers fail alike": _workers_fail_alike,
    "node dies that is done": _done_node_dies,
    "newcomer when some are done": _newcomer_when_some_are_done,
    "store set back by a round": _store_set_back,
    "two failures unrecorded": _failures_unrecorded,
    "host dies unrecorded": _node_dies_unrecorded,
    "worker fails unheard": _fails_unheard,
    "token revoked": _token_revoked,
    "end of a run missed": _misses_the_end,
}
"""The coincidences of any job, by name."""

KEEPING: dict[str, Strike] = {
    "holder leaves for a moment": _holder_leaves_for_a_moment,
    "holder misses a round": _holder_misses_a_round,
    "coordinator killed when a round is formed": _killed_when_formed,
    "node lost in a planned stop": _lost_in_a_planned_stop,
    "end of a run missed": _misses_the_end,
}
"""The coincidences of a job whose nodes keep state."""
