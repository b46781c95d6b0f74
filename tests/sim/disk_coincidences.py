"""Coincidences around the disk that all nodes write steps to: the end of one run, and the beginning of the next.

They are played like those of `coincidences`, each by itself. `DONE` strikes in a kind of its own (`finishes`).
"""

from __future__ import annotations

from collections.abc import Callable

from coordinatord.core.rounds.queries.past_round import has_succeeded
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.admin_requests import RestartJob, StopJob
from tests.sim.coincidences import in_round, once, trains
from tests.sim.faults import Strike
from tests.sim.host import Host
from tests.sim.kept_disk import NOTICED_S, DiskFault
from tests.sim.world import JOB, World

SLOW_S = 21.0, 26.0
"""How long a slow disk stands still: nodes take it for one that hangs after 30 s."""

AWAY_S = 25.0
"""The longest time for which a host does not see the directory, or cannot read it; a node waits for longer."""


def _stopped(world: World) -> None:
    """End a run that has done some steps, whose nodes write the last one before they go."""
    _end_run(world, lambda: None)


def _stopped_without_coordinator(world: World) -> None:
    """Kill the coordinator while nodes write the last step of a run that an operator ends, or are about to."""
    _end_run(world, lambda: None)
    once(
        world,
        lambda: world.daemon.up and world.state is State.FORMING and world.run.durable.stop_asked,
        lambda: _restart(world),
    )


def _goes_on_without_coordinator(world: World) -> None:
    """Kill the coordinator for a moment, in a round that goes on for long after that."""
    once(world, lambda: trains(world) and _steps(world) > world.seed % STEPS_MAX, lambda: _restart(world))


def _restart(world: World) -> None:
    """Kill the coordinator for a moment."""
    world.daemon.crash()
    world.queue.plan(world.chance.uniform(0.1, 2.0), world.daemon.start)


def _stopped_on_a_slow_disk(world: World) -> None:
    """Let the disk stand still for a while, as nodes write the last step of a run that an operator ends."""

    def stand_still() -> None:
        world.disks.break_down(DiskFault.HANGS)
        world.queue.plan(world.chance.uniform(*SLOW_S), world.disks.heal)

    _end_run(world, lambda: None)
    once(world, lambda: world.state is State.FORMING and world.run.durable.stop_asked, stand_still)


def _unreadable(world: World) -> None:
    """Begin another run when nobody can read what the last one has written."""

    def begin() -> None:
        world.disks.is_unreadable = True
        world.queue.plan(world.chance.uniform(5.0, AWAY_S), world.disks.repair)
        _boot(world)

    _end_run(world, begin)


def _finder_dies(world: World) -> None:
    """Begin another run with one node that finds what the last one has written, and one that does not; kill the first.

    It comes back before the other one has waited in vain.
    """

    def begin() -> None:
        finder, other = world.hosts.values()
        world.disks.unmount(other.name)
        world.queue.plan(AWAY_S, world.disks.mount, other.name)
        _boot(world)
        once(world, lambda: _are_members(world), lambda: die(finder))

    def die(finder: Host) -> None:
        world.queue.plan(2.0 * world.chance.random(), finder.vanish)
        world.queue.plan(AWAY_S, finder.boot)

    _end_run(world, begin)


def _unreadable_without_node(world: World) -> None:
    """Cut a node off until the others cannot read the step to which they go back without its newer one."""

    def cut_off() -> None:
        away = world.chance.choice(in_round(world))
        away.cut_off()
        once(world, lambda: world.state is not State.RUNNING, fail)
        once(world, lambda: _begins_from_disk(world), away.heal)

    def fail() -> None:
        world.disks.is_unreadable = True
        world.queue.plan(AWAY_S, world.disks.repair)

    once(world, lambda: trains(world) and world.disks.shared.whole, cut_off)


def _begins_from_disk(world: World) -> bool:
    resume = world.run.durable.resume
    return resume is not None and resume.disk is not None


def _end_run(world: World, then: Callable[[], object]) -> None:
    """Let an operator end the run after some steps; call `then` when all nodes have gone and the disk has a step."""

    def stop() -> None:
        run = world.run.id
        world.daemon.ask(StopJob(JOB, "operator", ""))
        once(world, lambda: world.is_over() and any(step.of[0] == run for step in world.disks.shared.whole), then)

    once(world, lambda: trains(world) and _steps(world) > world.seed % STEPS_MAX, stop)


def _steps(world: World) -> int:
    training = world.trainings.get((world.run.id, world.run.durable.round))
    stepped = None if training is None else training.stepped()
    return 0 if stepped is None else stepped[0]


def _boot(world: World) -> None:
    for host in world.hosts.values():
        host.boot()


def _are_members(world: World) -> bool:
    members = world.run.members.values()
    connected = sum(member.session.id is not None for member in members)
    return not world.run.durable.state.ended and connected == len(world.hosts)


def _once_written(world: World, holds: Callable[[], object], act: Callable[[], object]) -> None:
    """Have a step written as a round ends; call `act` as soon as `holds` returns true in the next round."""

    def wait() -> None:
        world.daemon.ask(RestartJob(JOB, "operator", ""))
        once(world, lambda: trains(world) and world.run.durable.round > 1 and holds(), act)

    once(world, lambda: trains(world) and _steps(world) > world.seed % STEPS_MAX, wait)


def _all_find_newest(world: World) -> bool:
    newest = next((step.of for step in world.disks.shared.whole if step.of[0] == world.run.id), None)
    held = [member.observed.kept for member in world.run.members.values()]
    found = [() if kept is None else kept.persisted for kept in held]
    return newest is not None and all(any((each.run, each.at) == newest for each in steps) for steps in found)


def _deleted(world: World, then: Callable[[], object]) -> None:
    """Delete the steps on the disk, or the newest one only, when all nodes have found that; stop the run later."""

    def delete() -> None:
        _delete(world, world.chance.choice([1, len(world.disks.shared.whole)]))
        then()

    _once_written(world, lambda: _all_find_newest(world), delete)


def _delete(world: World, steps: int) -> None:
    world.disks.delete(steps, world.queue.now)
    world.queue.plan(NOTICED_S + world.chance.uniform(1.0, 5.0), world.daemon.ask, StopJob(JOB, "operator", ""))


def _deleted_and_node_gone(world: World) -> None:
    """Delete steps on the disk, and let a node go before or after it has looked there again."""
    go = world.chance.choice([Host.kill, Host.vanish, Host.leave])
    _deleted(
        world, lambda: world.queue.plan(NOTICED_S * world.chance.random(), go, world.chance.choice(in_round(world)))
    )


def _deleted_without_coordinator(world: World) -> None:
    """Delete steps on the disk, and kill the coordinator for a moment before or after nodes have looked there again."""
    _deleted(world, lambda: world.queue.plan(NOTICED_S * world.chance.random(), _restart, world))


def _deleted_between_rounds(world: World) -> None:
    """Delete steps on the disk while no round runs."""

    def kill() -> None:
        world.chance.choice(in_round(world)).kill()
        once(world, lambda: world.state is State.FORMING, lambda: _delete(world, len(world.disks.shared.whole)))

    _once_written(world, lambda: _all_find_newest(world), kill)


LOST: dict[str, Strike] = {
    "steps on the disk deleted": lambda world: _deleted(world, lambda: None),
    "steps on the disk deleted, and a node goes": _deleted_and_node_gone,
    "steps on the disk deleted, and the coordinator dies": _deleted_without_coordinator,
    "steps on the disk deleted between two rounds": _deleted_between_rounds,
}
"""The coincidences of a job whose steps somebody deletes from the disk."""

STEPS_MAX = 20
"""An operator ends a run after fewer steps than that."""

PERSISTING: dict[str, Strike] = {
    "run ends with a step to write": _stopped,
    "disk stands still under the last step": _stopped_on_a_slow_disk,
    "coordinator dies before the last step is written": _stopped_without_coordinator,
    "coordinator dies and the round goes on": _goes_on_without_coordinator,
    "steps on the disk unreadable": _unreadable,
    "who finds a step dies": _finder_dies,
    "steps on the disk unreadable while a node is away": _unreadable_without_node,
}
"""The coincidences of a job whose nodes write steps to a disk, by name."""


def _done(world: World, act: Callable[[], object]) -> None:
    """Act once a job has succeeded, and its nodes write the last step before they go."""
    once(world, lambda: world.state is State.STOPPING and has_succeeded(world.run), act)


def _done_on_a_bad_disk(world: World) -> None:
    """Let the disk fail for a while, as nodes write the last step of a job that is done."""

    def fail() -> None:
        world.disks.break_down(world.chance.choice(list(DiskFault)))
        world.queue.plan(world.chance.uniform(*SLOW_S), world.disks.heal)

    _done(world, fail)


DONE: dict[str, Strike] = {
    "coordinator dies when the job is done": lambda world: _done(world, lambda: _restart(world)),
    "disk fails when the job is done": _done_on_a_bad_disk,
    "node dies when the job is done": lambda world: _done(world, lambda: world.chance.choice(in_round(world)).kill()),
    "node leaves when the job is done": lambda world: _done(
        world, lambda: world.chance.choice(in_round(world)).leave()
    ),
    "job is stopped when it is done": lambda world: _done(
        world, lambda: world.daemon.ask(StopJob(JOB, "operator", ""))
    ),
}
"""The coincidences of a job that has succeeded, and whose last step is not on the disk yet."""
