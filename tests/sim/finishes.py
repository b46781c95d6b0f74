"""Coincidences at the end of a training: a node that has done its part goes, while others have not done theirs.

They are played like those of `coincidences`, each by itself. They are not among those, so that the seeds of those play
what they have always played.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from coordinatord.core.rounds.values.admin_requests import StopJob
from tests.sim.coincidences import in_round, once, trains, when_some_are_done
from tests.sim.disk_coincidences import DONE
from tests.sim.faults import Strike
from tests.sim.history import play_coincidence
from tests.sim.host import Host
from tests.sim.scenario import draw_calm_scenario, draw_persisting_scenario
from tests.sim.worker_looks import LastWork, Outliving
from tests.sim.workers import Training
from tests.sim.world import JOB, World

HEARD_WITHIN_S = 4.0
"""How soon a node that is cut off comes back: within its lease."""

EXITS_WITHIN_S = 12.0
"""The longest time from the end of a worker's last work to its exit: shorter than `--hang-timeout`."""

LEAVE_WITHIN_S = 1.0
"""The longest time from the end of the training until a node is asked to leave."""


def _gone(host: Host) -> None:
    host.kill()


def _replaced(host: Host) -> None:
    host.kill()
    host.boot()


def _goes(world: World, go: Callable[[Host], None]) -> None:
    """Let a node go that has done its part; the others go on."""
    when_some_are_done(world, lambda done, _: go(world.chance.choice(done)))


def _goes_as_others_finish(world: World, go: Callable[[Host], None]) -> None:
    """Let a done node go while an operator stops the job, and the workers of the others end while cut off."""

    def act(done: list[Host], late: list[Host]) -> None:
        for host in late:
            host.cut_off()
            world.queue.plan(HEARD_WITHIN_S * world.chance.uniform(0.5, 1.0), host.heal)
        world.daemon.ask(StopJob(JOB, "operator", ""))
        go(world.chance.choice(done))

    when_some_are_done(world, act)


def _worker_leaves_early(world: World) -> None:
    """Let a worker exit with 0 while the others train."""

    def holds() -> bool:
        return trains(world) and sum(len(host.workers.alive) for host in in_round(world)) > 1

    def act() -> None:
        world.chance.choice(in_round(world)).workers.leave_early()

    once(world, holds, act)


FINISHES: dict[str, Strike] = {
    "done node dies": lambda world: _goes(world, _gone),
    "done node is replaced": lambda world: _goes(world, _replaced),
    "done node dies while the job is stopped": lambda world: _goes_as_others_finish(world, _gone),
    "done node is replaced while the job is stopped": lambda world: _goes_as_others_finish(world, _replaced),
}


def _leaves_when_done(world: World) -> None:
    """Ask some of the nodes to leave while their workers exit, since the training is done."""

    def act(training: Training) -> None:
        for host in world.chance.sample([*training.hosts.values()], world.chance.randint(1, len(training.hosts))):
            world.queue.plan(LEAVE_WITHIN_S * world.chance.random(), host.leave)

    world.on_done.append(act)


def _worker_outlives_its_training(world: World) -> None:
    """Let a worker hang or work when the training is done, in some cases in a section."""

    def act(training: Training) -> None:
        chance, now = world.chance, world.queue.now
        workers, work = chance.choice([*training.hosts.values()]).workers, chance.choice(list(LastWork))
        until = math.inf if work is LastWork.HANGS else now + chance.uniform(20.0, 80.0)
        limit_s = None if work is LastWork.HANGS else chance.choice([None, 600.0])
        training.standstills.last = Outliving(now, until, work, limit_s)
        workers.outlive(
            chance.choice(sorted(workers.alive)), training.standstills.last, chance.uniform(0.0, EXITS_WITHIN_S)
        )

    world.on_done.append(act)


EARLY: dict[str, Strike] = {"worker leaves early": _worker_leaves_early}
LEAVES: dict[str, Strike] = {"node leaves when the training is done": _leaves_when_done}
UNENDED: dict[str, Strike] = {"worker outlives its training": _worker_outlives_its_training}
"""What strikes in kinds of their own."""


def finishing_world(
    seed: int,
    *,
    strikes: dict[str, Strike] = FINISHES,
    ends_within_s: Sequence[float] = (0.5, 3.0),
    stalls: float = 0.0,
    hang_timeout_s: float | None = None,
) -> World:
    """Play the history of a few nodes that finish one after the other; the last two are settings of the scenario."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(drawn.workers, ends_within_s=chance.choice(ends_within_s), stalls=stalls)
    nodes = chance.choice([2, 3])
    scenario = replace(
        drawn,
        max_restarts=9,
        hosts=nodes,
        nodes_min=chance.choice([1, nodes]),
        nodes_max=nodes,
        hang_timeout_s=hang_timeout_s,
        workers=workers,
    )
    return play_coincidence(seed, chance, scenario, strikes)


def early_leaving_world(seed: int) -> World:
    """Play one in which a worker exits with 0 while the others train."""
    return finishing_world(seed, strikes=EARLY)


def leaving_finish_world(seed: int) -> World:
    """Play one in which nodes are asked to leave while their workers exit."""
    return finishing_world(seed, strikes=LEAVES)


def late_exit_world(seed: int) -> World:
    """Play one in which some workers end long after the others, in some cases of a training whose steps take long."""
    return finishing_world(seed, ends_within_s=(20.0, 60.0), stalls=0.3)


def unended_world(seed: int) -> World:
    """Play one in which a worker hangs or works at its exit, and its user wants hangs to be ended."""
    return finishing_world(seed, strikes=UNENDED, hang_timeout_s=15.0)


def done_world(seed: int) -> World:
    """Play one whose nodes write the last step to a disk when the job is done."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_persisting_scenario(chance)
    workers = replace(drawn.workers, work_s=20.0, ends_within_s=chance.choice([0.5, 3.0]))
    return play_coincidence(seed, chance, replace(drawn, nodes_min=2, workers=workers), DONE)
