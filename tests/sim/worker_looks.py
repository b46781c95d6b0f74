"""What looks show of a training's workers: while they train, and while they stand still.

A training that does no step may do something else. That is drawn from a generator of its own, so that other seeds play
what they have always played.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coordinatord.core.rounds.effects import Look, WorkerSource
from coordinatord.core.rounds.events import Event, Looked
from coordinatord.core.watching.worker_sources import SourceStacks, seen_workers
from coordinatord.hints.seen_worker import WAITS_FOR_DISK
from coordinatord.protocol.messages import Section
from coordinatord.protocol.stack_messages import Collective, CollectiveState, StackOrigin, WorkerStacks, pack_stacks
from coordinatord.server.reads.stack_reads import ANSWER_WITHIN_S

if TYPE_CHECKING:  # the world imports its parts
    from tests.sim.network import Session
    from tests.sim.workers import Training
    from tests.sim.world import World

COLLECTIVE_S = 0.4
"""The time from one collective to the next."""

LOOK_WITHIN_S = 1.2
"""A node answers within this time."""


LOST = 0.05
"""The share of looks that never come back."""


TORCH_FRAME = "wait (torch/distributed/distributed_c10d.py:3252)"
"""The innermost frame of a worker that waits in native code of torch."""


class Doing(StrEnum):
    """What workers do while they do no step."""

    EVALUATES = "evaluates"
    """Each of them by itself."""
    COUNTS = "counts"
    """All of them together, in collectives."""
    COMPUTES = "computes"
    """One of them, and the others wait."""
    HANGS = "hangs"
    """One of them stands, and the others wait."""
    STOPPED = "stopped"
    """One of them was stopped, and the others wait."""
    SKIPPED = "skipped"
    """All wait, and one of them in another collective."""

    @property
    def is_hang(self) -> bool:
        """Whether it never ends by itself."""
        return self in {Doing.HANGS, Doing.STOPPED, Doing.SKIPPED}


class LastWork(StrEnum):
    """What a worker does that lives on when its training is done."""

    HANGS = "hangs"
    """It stands, and never ends."""
    WORKS = "works"
    """It uses no CPU at the moment of a look, and its stack moves."""
    SAVES = "saves"
    """It waits for a disk."""
    UNSEEN = "is not seen"
    """It answers no look."""


HARMLESS = (Doing.EVALUATES, Doing.COUNTS, Doing.COMPUTES)


@dataclass
class Standstill:
    """A time in which a training does no step."""

    begin: float
    end: float
    doing: Doing
    culprit: int
    """The rank of the worker that the others wait for, if they do."""
    section: Section | None = None
    """The section of the culprit, with the age 0."""


@dataclass
class Outliving:
    """The time in which a worker lives on when its training is done."""

    begin: float
    end: float
    """When its work ends; it stands from then on until it ends itself."""
    work: LastWork
    limit_s: float | None
    """The limit of the section that it works in; None if it is in none."""

    def section(self, now: float) -> Section | None:
        """Return the section that the worker is in."""
        if self.limit_s is None or now >= self.end:
            return None
        return Section("upload", self.limit_s, now - self.begin, 0)

    def seen(self, rank: int, now: float) -> WorkerStacks:
        """Return what a look shows of the worker."""
        work = self.work if now < self.end else LastWork.HANGS
        stands = _worker(rank, CollectiveState.DONE, 0, "exit" if work is LastWork.HANGS else "upload")
        match work:
            case LastWork.HANGS:
                return stands
            case LastWork.WORKS:
                return replace(stands, stacks=pack_stacks([("MainThread", (f"upload (train.py:{1 + int(now)})",))]))
            case LastWork.SAVES:
                return replace(stands, state=WAITS_FOR_DISK)
            case LastWork.UNSEEN:
                return replace(stands, origin=StackOrigin.NONE, stacks=b"", collective=None, problem="import workerlib")


class Standstills:
    """The standstills of one training."""

    def __init__(self, training: Training, seed: int) -> None:
        self._training = training
        self._chance = random.Random(f"{seed} {training.key}")  # noqa: S311 - repeatable on purpose
        self.known: list[Standstill] = []
        self.last: Outliving | None = None
        """What a worker does that lives on when the training is done."""

    def begin(self, now: float, seconds: float, doing: Doing | None = None, limit_s: float | None = None) -> None:
        """Begin a standstill; without `doing`, of a kind that ends."""
        doing = doing or self._chance.choice(HARMLESS)
        ranks = sum(len(host.workers.alive) for host in self._training.hosts.values())
        section = None if limit_s is None else Section("eval", limit_s, 0.0, 0)
        self.known.append(Standstill(now, now + seconds, doing, self._chance.randrange(max(1, ranks)), section))

    def at(self, now: float) -> Standstill | None:
        """Return the standstill at a time; None if there is none."""
        return next((standstill for standstill in self.known if standstill.begin <= now < standstill.end), None)

    @property
    def hung(self) -> Standstill | None:
        """The standstill that never ends; None if there is none."""
        return next((standstill for standstill in self.known if standstill.doing.is_hang), None)

    @property
    def section_end(self) -> float:
        """When the section of a worker that outlives the training ends; long ago if there is none."""
        return -math.inf if self.last is None or self.last.limit_s is None else self.last.end

    def section(self, now: float) -> Section | None:
        """Return the section that workers are in, as a node reports it."""
        standstill = self.at(now)
        if standstill is None or standstill.section is None:
            return None
        return Section(standstill.section.name, standstill.section.limit_s, now - standstill.begin, 0)

    def seen(self, rank: int, now: float) -> WorkerStacks:
        """Return what a look shows of a worker."""
        if now < self._training.done_at:
            return self._seen_in_training(rank, now)
        return _worker(rank, CollectiveState.DONE, 0, "exit") if self.last is None else self.last.seen(rank, now)

    def _seen_in_training(self, rank: int, now: float) -> WorkerStacks:
        training, standstill = self._training, self.at(now)
        number = self._collectives(now)
        if standstill is None or standstill.doing is Doing.COUNTS or training.whole_at is None:
            return _worker(rank, CollectiveState.WAITS, number, "all_reduce", cpus=0.5)
        if rank != standstill.culprit and standstill.doing is not Doing.EVALUATES:
            connects = number % 3 == 0 and standstill.doing is not Doing.SKIPPED
            waits = _worker(rank, CollectiveState.WAITS, number + 1, "all_reduce")
            return _connecting(rank, number) if connects else waits
        match standstill.doing:
            case Doing.SKIPPED:
                return _worker(rank, CollectiveState.WAITS, number + 2, "barrier")
            case Doing.STOPPED:
                return _stopped(rank)
            case Doing.HANGS:
                return _worker(rank, CollectiveState.DONE, number, "acquire", native=number % 2 == 0)
            case _:
                return _worker(rank, CollectiveState.DONE, number, "evaluate", cpus=1.0)

    def _collectives(self, now: float) -> int:
        """Return how many collectives were done: none while workers stand, or compute."""
        began = self._training.whole_at or now
        idle = [standstill for standstill in self.known if standstill.doing is not Doing.COUNTS]
        idle_s = sum(min(standstill.end, now) - standstill.begin for standstill in idle if standstill.begin < now)
        return max(0, int((now - began - idle_s) / COLLECTIVE_S))


def _worker(
    rank: int, state: CollectiveState, number: int, frame: str, *, cpus: float = 0.0, native: bool = False
) -> WorkerStacks:
    collective = Collective("default_pg", number, state, f"gloo:{frame}", "8 Float", 12.0)
    in_torch = [TORCH_FRAME] if native or state is CollectiveState.WAITS else []
    frames = (*in_torch, f"{frame} (train.py:{number % 9 + 1 if cpus else 7})", "<module> (train.py:9)")
    stacks = pack_stacks([("MainThread", frames)])
    return WorkerStacks(rank, StackOrigin.WORKER, stacks, "sleeping", "", cpus, collective, "", rank + 1, 0)


def _connecting(rank: int, number: int) -> WorkerStacks:
    """Return what a look shows of a worker that connects to others for the first collective of a group."""
    frames = ("all_reduce (torch/distributed/distributed_c10d.py:3252)", "main (train.py:7)", "<module> (train.py:9)")
    done = _worker(rank, CollectiveState.DONE, number, "all_reduce", cpus=1.0)
    return replace(done, stacks=pack_stacks([("MainThread", frames)]))


def _stopped(rank: int) -> WorkerStacks:
    return WorkerStacks(rank, StackOrigin.NONE, b"", "stopped", "", 0.0, None, "it is stopped", rank + 1, 0)


def _ended(rank: int) -> WorkerStacks:
    return WorkerStacks(rank, StackOrigin.NONE, b"", "", "", 0.0, None, "it has ended", 0, 0)


class Looks:
    """Carries out the looks of one coordinator, as `server/reads/stack_reads.py` does."""

    def __init__(self, world: World, submit: Callable[[Event], None], sessions: dict[int, Session]) -> None:
        self._world = world
        self._submit = submit
        self._sessions = sessions
        self._chance = random.Random(world.seed)  # noqa: S311 - repeatable on purpose

    def begin(self, look: Look) -> None:
        """Begin to look at all workers; each node answers at a time of its own, or never."""
        self._world.trace.note("coordinatord looks at round %d, look %d", look.round, look.number)
        is_lost = self._chance.random() < LOST
        self._world.invariants.hangs.looks(look, is_lost=is_lost)
        answers: dict[int, tuple[WorkerStacks, ...]] = {}
        most_s = self._chance.choice([0.02, LOOK_WITHIN_S])
        delays = [self._chance.uniform(0.0, most_s) for _ in look.sources]
        for number, (source, delay) in enumerate(zip(look.sources, delays, strict=True)):
            self._world.queue.after(delay, self._sample, answers, number, look, source)
        if not is_lost:
            self._world.queue.after(max(delays) + 0.01, self._collect, look, answers)

    def _sample(
        self, answers: dict[int, tuple[WorkerStacks, ...]], number: int, look: Look, source: WorkerSource
    ) -> None:
        session = self._sessions.get(source.session or 0)
        host = None if session is None else session.host
        key = (look.run, look.round)
        if host is not None and host.well and host.workers.round == key:
            seen, now, alive = self._world.trainings[key].standstills.seen, self._world.queue.now, host.workers.alive
            ranks = zip(source.local_ranks, source.ranks, strict=True)
            answers[number] = tuple(seen(rank, now) if local in alive else _ended(rank) for local, rank in ranks)

    def _collect(self, look: Look, answers: dict[int, tuple[WorkerStacks, ...]]) -> None:
        sampled = [SourceStacks(source, answers.get(number, ())) for number, source in enumerate(look.sources)]
        looked = Looked(look.run, look.round, look.number, seen_workers(sampled))
        late_s = 0.0 if len(answers) == len(look.sources) else ANSWER_WITHIN_S - LOOK_WITHIN_S
        self._world.queue.after(late_s, self._submit, looked)
