"""The training processes of one host: they train, fail, hang, are slow to die, and break when their peers are gone.

A `Training` is the worker group of a round: when it is done, and whether it is broken.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.kept_state import StateDigest
from coordinatord.protocol.messages import Observed, Section
from nodeclient.core.effects import Start
from nodeclient.core.events import GpusInUse, StartFailed, SweepFailed, Swept, WorkersStarted
from nodeclient.core.host_health import GpuUse
from tests.sim.invariants.laws import Laws
from tests.sim.staying import StayingWorkers
from tests.sim.worker_looks import Doing, LastWork, Outliving, Standstills
from tests.support.builders import LOST_PEER

if TYPE_CHECKING:  # hosts import their workers
    from tests.sim.host import Host
    from tests.sim.world import World


Round = tuple[str, int]
"""A run and the number of a round."""

STEP_S = 0.4
"""The length of a step in a training that reports its steps."""

LAST_STEP_S = 0.5
"""The interval of attempts to end a training that should be done, but lacks nodes."""

FAILS_ALIKE_WITHIN_S = 0.4
"""The time within which all workers exit that fail alike: before they are killed, which is half a second after SIGTERM.
"""

UNKILLABLE_S = 60.0
"""The time after which a sweep gives up on a process that outlives SIGKILL, as in nodeclient."""


class Training:
    """All workers of one round."""

    def __init__(self, world: World, key: Round) -> None:
        self._world = world
        self.key = key
        self.started_at = world.queue.time
        self.began_at = world.queue.now
        self.hosts: dict[str, Host] = {}
        self.whole_at: float | None = None
        """When workers had been started on all of its nodes."""
        self.broken = False
        """Whether one of its workers is gone, so that the others fail or hang."""
        self.broken_at = math.inf
        self.broken_by: tuple[str, int] | None = None
        """The node and incarnation whose worker is gone."""
        self.done_at = math.inf
        """When the last step was taken."""
        self.first_states: dict[str, int] = {}
        """What stands for the state of each node after the first step, in a round that began from nothing."""
        self.stalls: list[tuple[float, float]] = []
        """The spans in which it did no step, though it was not broken."""
        self.replicas = Replicas(self, world)
        """The digests of its workers' states."""
        self.standstills = Standstills(self, world.seed)
        """What its workers did in these spans."""
        self._bounds: dict[str, int] = {}
        """The step beyond which the workers of a host do not go, if they have to stand still."""
        self.fails_alike = False
        """Whether all of its workers fail with the same error."""
        self.exited_well = 0
        """Workers that exited with 0."""
        self.exited_at = math.inf
        """When the last of them exited so far."""
        self.first_step = self._checkpoint()
        """The step from which the script goes on."""
        self.first_step_s = world.scenario.workers.first_step_in(key[1])
        """How long after the start of all of them the first step is reported; None if steps are not."""
        self._left_s = world.work_left.get(key[0], world.scenario.workers.work_s)
        world.queue.plan(self._left_s, self._done)

    def _checkpoint(self) -> int:
        """Return the step of the last checkpoint: later steps are done again."""
        run, number = self.key
        stepped = [training.stepped() for key, training in self._world.trainings.items() if key[0] == run]
        reached = max((last[0] for last in stepped if last is not None), default=0)
        return reached * (number % 3) // 2

    def join(self, host: Host) -> None:
        """Take in the workers that a host has started."""
        self.hosts[host.name] = host
        self.begin_if_whole()
        if self.broken:
            host.workers.lose_peer()

    def begin_if_whole(self) -> None:
        """Let the training begin once all workers are started, and have what they resume from."""
        world, hosts = self._world, self.hosts.values()
        if self.whole_at is not None or len(hosts) != len(world.invariants.facts.formed[self.key].nodes):
            return
        memories = [host.memory for host in hosts if host.memory is not None]
        if any(memory.key != self.key or memory.resumed is None for memory in memories):
            return
        if self.broken and world.scenario.keeps is not None:
            return  # a worker is gone, and the memory of its node with it
        if memories:
            world.invariants.kept.begins(self)
        self.whole_at = world.queue.now
        for memory in memories:
            resumed = memory.resumed
            if resumed is not None and resumed[0] is not None:
                self.first_step = resumed[0].step + 1
            memory.begin(self)
        traits, chance, first_step_s = world.scenario.workers, world.chance, self.first_step_s
        if first_step_s is not None and chance.random() < traits.stalls:
            after = first_step_s + chance.uniform(1.0, 16.0)
            stall_s = chance.choice([chance.uniform(1.0, 8.0), chance.uniform(12.0, 40.0)])
            world.queue.plan(after, self._stall, stall_s)

    def stepped(self) -> tuple[int, float] | None:
        """Return the last step that all workers have taken, and how long ago; None before there is one to report."""
        first_s = self.first_step_s
        if self.whole_at is None or first_s is None:
            return None
        now = self._world.queue.now
        until = min(now, self.broken_at, self.done_at)
        if until < self.whole_at + first_s:
            return None
        steps = (until - self.whole_at - first_s - self.stalled_s(until)) // STEP_S
        if self._bounds:  # all workers take part in a step
            steps = min(steps, min(self._bounds.values()) - self.first_step)
        at = self.whole_at + first_s + steps * STEP_S
        for begin, end in self.stalls:
            at += end - begin if at > begin else 0.0
        return self.first_step + int(steps), now - at

    @property
    def steps(self) -> int:
        """How many steps all workers have taken."""
        stepped = self.stepped()
        return 0 if stepped is None else stepped[0] + 1 - self.first_step

    def stand_still(self, host: Host, *, one_more: bool) -> int:
        """Let the workers of a host go no further than the step that they are in; return which one that is."""
        stepped = self.stepped()
        done = self.first_step - 1 if stepped is None else stepped[0]
        self._bounds[host.name] = done + 1 + one_more
        return self._bounds[host.name]

    def go_on_to(self, host: Host, step: int) -> None:
        """Let the workers of a host go on to this step, and no further."""
        self._bounds[host.name] = step

    def stalled_s(self, until: float) -> float:
        """Return how long the training had stalled by a time."""
        return sum(min(end, until) - begin for begin, end in self.stalls if begin < until)

    def section_of(self, host: Host) -> Section | None:
        """Return the section that workers of a host are in; while they train, only the first host reports it."""
        now, last = self._world.queue.now, self.standstills.last
        if last is not None:
            return last.section(now) if host.workers.outliving else None
        return self.standstills.section(now) if host is next(iter(self.hosts.values())) else None

    @property
    def stalls_until(self) -> float:
        """The end of the last stall."""
        return self.stalls[-1][1] if self.stalls else -math.inf

    def _stall(self, seconds: float) -> None:
        now = self._world.queue.now
        if self.stepped() is not None and not self.broken and now > self.stalls_until:
            self._world.trace.note("the training of round %d stalls for %.1f s", self.key[1], seconds)
            self.stalls.append((now, now + seconds))
            self.standstills.begin(now, seconds)

    def hang(self, doing: Doing, seconds: float, limit_s: float | None) -> None:
        """Let the training do no step for some time, or for ever, and perhaps in a section with a limit."""
        now = self._world.queue.now
        if self.stepped() is not None and not self.broken and now > self.stalls_until and self.done_at == math.inf:
            self._world.trace.note("round %d %s for %.1f s, section %s", self.key[1], doing, seconds, limit_s)
            self.stalls.append((now, now + seconds))
            self.standstills.begin(now, seconds, doing, limit_s)

    def fail_alike(self, exit_code: int, error: str) -> None:
        """Let all workers fail with the same error, and exit one after the other."""
        self.fails_alike = True
        for host in self.hosts.values():
            host.workers.fail_all(exit_code, error)

    def breaks(self, by: Host) -> None:
        """Note that a worker of a host is gone, so that the others fail or hang. The steps so far were saved."""
        if self.broken:
            return
        self.broken, self.broken_at = True, self._world.queue.now
        self.broken_by = (by.node, by.incarnation)
        self._world.work_left[self.key[0]] = max(1.0, self._to_do_s)
        for host in self.hosts.values():
            if host.workers.training is self:
                host.workers.lose_peer()

    @property
    def _to_do_s(self) -> float:
        """The seconds of training that are left; stalls do not count as training."""
        stalled_s = self.stalled_s(self._world.queue.now)
        return self._left_s - (self._world.queue.time - self.started_at - stalled_s)

    def _done(self) -> None:
        if self.broken or not all(host.workers.training is self for host in self.hosts.values()):
            return
        waits = self.whole_at is None or bool(self._bounds) or self._world.queue.now < self.stalls_until
        if waits or self._to_do_s > STEP_S:
            self._world.queue.plan(max(LAST_STEP_S, self._to_do_s), self._done)  # all workers take part in a step
        else:
            self.done_at = self._world.queue.now
            self._world.touch()
            self._world.trace.note("the training of round %d is done", self.key[1])
            for host in self.hosts.values():
                host.workers.finish()
            acts, self._world.on_done = self._world.on_done, []
            for act in acts:
                act(self)


class LocalWorkers:
    """The workers of one nodeclient, in one round at a time."""

    def __init__(self, host: Host, world: World) -> None:
        self._host, self._world = host, world
        self._traits = world.scenario.workers
        self.alive: set[int] = set()
        """The local ranks of workers that live."""
        self.round: Round = ("", 0)
        """The round of the last start."""
        self.training: Training | None = None
        self.starts = 0
        """The number of starts, which distinguishes their workers."""
        self._error = ""
        """The exception that all of them have written; empty if they have written none."""
        self._stubborn: set[int] = set()
        self._slow: set[int] = set()
        self.outliving: set[int] = set()
        """The local ranks of workers that do not end when their training is done."""
        self._sweeping = False
        self.ended_at = self.gpu_free_at = 0.0
        """When the workers of the last round had ended, and when the memory of the GPU is free that they had."""
        self.staying = StayingWorkers(host, world, self)

    # Effects of the agent

    def start(self, start: Start) -> None:
        """Start the workers of a round."""
        world, random = self._world, self._world.chance.random
        self.starts += 1
        self._error = ""
        self.staying.begin(start)
        self.round = (start.run, start.round)
        training = world.training(self.round)
        self.training = training
        traits = self._traits
        ranks = range(traits.each)
        if traits.cannot_start and random() < traits.cannot_start:
            at = int(random() * traits.each)
            self.alive = set(range(at))
            world.tell(Laws.failed, self._host, self.round)
            training.breaks(self._host)
            training.join(self._host)
            self._host.submit(StartFailed(at, ExitCode.OS_ERROR, "no such program"))
            return
        self.alive, self.outliving = set(ranks), set()
        self._stubborn = {rank for rank in ranks if random() < traits.stubborn}
        self._slow = {rank for rank in ranks if random() < traits.slow_to_die}
        self.staying.announce()
        training.join(self._host)
        if traits.fails_at_once and random() < traits.fails_at_once:
            world.queue.plan(0.01 * random(), self._fail, self.starts, 0, 1)
        if traits.starts_within_s:
            world.queue.plan(random() * traits.starts_within_s, self._started, self.starts)
        else:
            self._started(self.starts)

    def _started(self, start: int) -> None:
        if start == self.starts and self.training is not None:
            self._host.submit(WorkersStarted(pids=tuple(range(1, self._traits.each + 1))))

    def terminate(self) -> None:
        """Send all of them SIGTERM."""
        for rank in sorted(self.alive - self._stubborn):
            self._end_later(rank, self._world.chance.random() * self._traits.saves_within_s, -15)

    def kill(self) -> None:
        """Send all of them SIGKILL."""
        for rank in sorted(self.alive):
            self._end_later(rank, self._death_s(rank), -9)

    def sweep(self, *, checks_gpus: bool) -> None:
        """Kill all workers that are left, and notify the agent when none is, or memory of the GPU is in use."""
        takes = max((self._death_s(rank) for rank in sorted(self.alive)), default=0.0)
        takes += 0.005 * self._world.chance.random()
        self._world.queue.plan(min(takes, UNKILLABLE_S), self._swept, self.starts, takes, checks_gpus)

    def _death_s(self, rank: int) -> float:
        quick = 0.005 * self._world.chance.random()
        return quick + (25.0 * self._world.chance.random() if rank in self._slow else 0.0)

    def _swept(self, start: int, takes: float, checks_gpus: bool) -> None:
        if start != self.starts or self._host.agent is None:
            return
        if takes > UNKILLABLE_S:
            self._host.submit(SweepFailed("a process outlives SIGKILL"))
            return
        for rank in sorted(self.alive):
            self._end(rank, -9)
        if self.training is not None and self._traits.gpu_held_s:
            self.ended_at = self._world.queue.now
            self.gpu_free_at = self.ended_at + self._traits.gpu_held_s * self._world.chance.random()
        self.training = None
        if checks_gpus and self._world.queue.now < self.gpu_free_at:
            self._host.submit(GpusInUse((GpuUse("nvidia0", 1 << 36),)))
            return
        self._host.submit(Swept(self._host.draw_port()))

    # Reports

    @property
    def training_is_over(self) -> bool:
        """Whether the training of the last start is done, so that its workers only have to exit."""
        training = self._world.trainings.get(self.round)
        return training is not None and training.done_at < math.inf

    def with_steps(self, observed: Observed, begun: Round) -> Observed:
        """Add steps as `step_slots` of nodeclient does: the last ones of a round stay until the next one."""
        training, each = self._world.trainings.get(begun), self._traits.each
        if training is None or training.key != (observed.run, observed.round):
            return observed
        stepped, section = training.stepped(), training.section_of(self._host)
        if stepped is not None:
            digests = training.replicas.digests(self._host, stepped[0])
            return replace(
                observed,
                steps=(stepped[0],) * each,
                step_age_s=stepped[1],
                stepped_twice=training.steps > 1,
                section=section,
                digests=digests,
            )
        announced = self._traits.announces_in(observed.round)
        return replace(observed, steps=(None,) * each if announced else observed.steps, section=section)

    # Faults, and ends

    def fail(self, exit_code: int = 1) -> bool:
        """Make a worker fail by itself; return whether there was one."""
        if self.alive:
            self._fail(self.starts, self._world.chance.choice(sorted(self.alive)), exit_code)
            return True
        return False

    def fail_all(self, exit_code: int, error: str) -> None:
        """Let all workers fail by themselves with this error, and exit soon, unless a signal ends them before."""
        self._error = error
        for rank in sorted(self.alive):
            after = FAILS_ALIKE_WITHIN_S * self._world.chance.random()
            self._world.queue.plan(after, self._fail, self.starts, rank, exit_code)

    def leave_early(self) -> None:
        """Let a worker exit with 0 though the training is not done, so that the others fail or hang."""
        if self.alive and self.training is not None and not self.training.broken:
            rank = self._world.chance.choice(sorted(self.alive))
            self._world.trace.note("%s: worker %d exits with 0 too early", self._host.name, rank)
            self._world.tell(Laws.left_early, self._host, self.round)
            self.part(rank)
            self.staying.see(rank, 0, "")

    def harden(self) -> None:
        """Make all workers ignore SIGTERM from now on."""
        self._stubborn |= self.alive

    def finish(self) -> None:
        """Let all workers exit with 0."""
        for rank in sorted(self.alive):
            self._end_later(rank, self._world.chance.random() * self._traits.ends_within_s, 0)

    def outlive(self, rank: int, last: Outliving, exit_s: float) -> None:
        """Let a worker live on when its training is done; once its last work is over, it exits within so many seconds.

        If it hangs, it never does.
        """
        self.outliving.add(rank)
        if last.work is not LastWork.HANGS:
            self._world.queue.plan(last.end + exit_s - self._world.queue.now, self._outlived, self.starts, rank)

    def _outlived(self, start: int, rank: int) -> None:
        if start == self.starts:
            self.outliving.discard(rank)
            self._ended(start, rank, 0)

    def lose_peer(self) -> None:
        """Break the collectives of the workers: they fail, or hang until they are killed."""
        if self.staying.lose_peer():
            return
        if self.alive and self._world.chance.random() < self._traits.breaks:
            after = 0.01 + 0.3 * self._world.chance.random()
            self._world.queue.plan(after, self._ended, self.starts, min(self.alive), 1, LOST_PEER)
        else:
            self._stubborn |= self.alive

    def die(self) -> None:
        """Die with the nodeclient, or the host, without a message."""
        self.starts += 1
        self.staying.held.clear()
        if self.alive:
            self._world.tell(Laws.gone, self._host)
            self.alive.clear()
            if self.training is not None:
                self.training.breaks(self._host)
        self.training = None

    def _fail(self, start: int, rank: int, exit_code: int) -> None:
        if start == self.starts and rank in self.alive:
            self._world.trace.note("%s: worker %d fails by itself with %d", self._host.name, rank, exit_code)
            self._world.tell(Laws.failed, self._host, self.round)
            self._end(rank, exit_code)

    def _end_later(self, rank: int, seconds: float, exit_code: int) -> None:
        self._world.queue.plan(seconds, self._ended, self.starts, rank, exit_code)

    def _ended(self, start: int, rank: int, exit_code: int, error: str = "") -> None:
        if start == self.starts and rank in self.alive and (exit_code or rank not in self.outliving):
            self._end(rank, exit_code, error)

    def _end(self, rank: int, exit_code: int, error: str = "") -> None:
        if exit_code == 0 and self.training is not None:
            self.alive.discard(rank)
            self.training.exited_well += 1
            self.training.exited_at = self._world.queue.now
        else:
            self.part(rank)
        self.staying.see(rank, exit_code, self._error or error)

    def part(self, rank: int) -> None:
        """Take a worker out of the round, so that the others fail or hang."""
        self.alive.discard(rank)
        training = self.training
        if training is not None and not training.broken:
            self._world.tell(Laws.gone, self._host)
            training.breaks(self._host)


class Replicas:
    """The state of each worker of a training: that of all others, until a bit of it flips."""

    def __init__(self, training: Training, world: World) -> None:
        self._training, self._world = training, world
        self.flipped: dict[int, int] = {}
        """The first step after which the state of a rank is not that of the others, by rank."""
        self.flipped_at = 0.0
        """When the first of them flipped."""

    def flip(self, rank: int) -> bool:
        """Flip a bit in the state of a rank, which so has another state after each later step; return whether it did.

        It does not if none trains, or one has flipped already.
        """
        stepped = self._training.stepped()
        if stepped is None or self._training.broken or self.flipped:
            return False
        self._world.trace.note("round %d: a bit flips on rank %d", self._training.key[1], rank)
        self.flipped[rank], self.flipped_at = stepped[0] + 1, self._world.queue.now
        return True

    def digests(self, host: Host, step: int) -> tuple[StateDigest | None, ...]:
        """Return what a host reports after a step: the digests of the last step for which workers make them."""
        formed, scenario = self._world.invariants.facts.formed[self._training.key], self._world.scenario
        own = next(ranks for ranks in formed.nodes if ranks.node == host.node)
        every = scenario.digest_steps_of_others if own.first_rank else scenario.digest_steps
        step = step // every * every
        if step < self._training.first_step:
            return ()
        ranks = range(own.first_rank, own.first_rank + own.workers)
        return tuple(StateDigest(step, 0, int(self.flipped.get(rank, step + 1) <= step)) for rank in ranks)
