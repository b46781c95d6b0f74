"""A healthy training, drawn by chance: what its workers do at each moment, and what a look shows of them.

A training is a row of collectives. Before each of them a worker does something by itself, and the workers that have
come wait for the others; then the data is sent. A collective need not end for all at once: a broadcast ends for each
worker at its own time, and groups of workers have collectives of their own. A step is a collective that ends with
`ctx.step`. The whole history is drawn before it is played, so the state at any moment can be computed by itself.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from coordinatord.hints.hang_verdict import DEFAULT_GROUP
from coordinatord.protocol.stack_messages import Collective, CollectiveState, StackOrigin, WorkerStacks, pack_stacks

WATCHED_S = 0.2
"""The time over which a look compares the counters of the flight recorder."""

WRITTEN_AT_ONCE = 1 << 20
"""gloo passes data to the kernel in pieces of so many bytes, and only the sender is seen to write."""

LIMITS_S = (8.0, 30.0, 120.0)
"""The limits of sections of the script."""


class Doing(StrEnum):
    """What a worker does by itself before it comes to a collective."""

    COMPUTES = "computes"
    STARVES = "starves"
    """It computes, on a host so busy that it gets hardly any of a CPU."""
    LOADS = "loads"
    """It waits for the processes that load its data."""
    SAVES = "saves"
    """It waits for a process that writes a checkpoint, to a disk that is slow."""
    FLUSHES = "flushes"
    """It waits for a disk to take what it has written, as in one fsync: no counter moves."""
    CALLS = "calls"
    """It waits for a program that it has started, and that waits itself, as for a licence."""
    RESTS = "rests"
    """It waits for something else, as for an upload, in a section of the script."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some collectives of one kind, one after the other."""

    begin: float
    each_s: float
    times: int
    first: int
    """The number of its first collective."""
    arrive_s: tuple[float, ...]
    """The time from the begin of each collective until a worker comes to it, by rank."""
    doing: Doing
    """What each worker does until it comes."""
    steps: int
    """The steps that were done before it."""
    stepped_at: float
    """When the last of these was done."""
    is_step: bool
    """Whether each of its collectives ends a step."""
    limit_s: float | None = None
    """The limit of the section that its last worker is in."""
    groups: int = 1
    """The number of groups of workers, each of which has a collective of its own."""
    leave_s: tuple[float, ...] = ()
    """When the collective is over for each worker, by rank; empty if for all at its end. A worker that is done waits
    for the others in another collective, which has all workers and ends with the stretch."""

    @property
    def last(self) -> int:
        """The rank that comes last."""
        return self.arrive_s.index(max(self.arrive_s))

    @property
    def end(self) -> float:
        """When its last collective is over."""
        return self.begin + self.each_s * self.times

    @property
    def after(self) -> int:
        """The number of the first collective after it."""
        return self.first + self.times + bool(self.leave_s)

    def stepped(self, now: float) -> tuple[int, float]:
        """Return how many steps were done at a moment of the stretch, and when the last one was."""
        done = int((now - self.begin) / self.each_s) if self.is_step else 0
        return self.steps + done, self.begin + done * self.each_s if done else self.stepped_at


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker is: the collective that it waits in, or the last one that it has done."""

    group: str
    ranks: tuple[int, ...]
    """The ranks of the group."""
    number: int
    state: CollectiveState


class CalmTraining:
    """The history of one training. Times are seconds after its begin, and ranks are global."""

    names_rests = True
    """Whether it names the phases in which a worker waits for something else."""

    def __init__(self, chance: random.Random, ranks: int, seconds: float) -> None:
        self._chance, self._ranks = chance, ranks
        self._step_s = 10 ** chance.uniform(-1.3, 0.9)
        self._bytes_per_s = 10 ** chance.uniform(5.3, 9.0)
        """How fast each worker sends data of a collective, or writes a checkpoint."""
        self._stretches: list[Stretch] = []
        draws = (
            *(self._trains, self._slow, self._evaluates, self._counts, self._saves, self._flushes, self._rests),
            *(self._gathers, self._broadcasts, self._reduces_in_groups),
        )
        self._start()
        while self._stretches[-1].end < seconds:
            chance.choice(draws)()
            if chance.random() < 0.7:
                self._trains()
        self._begins = [stretch.begin for stretch in self._stretches]

    # Drawing

    def _start(self) -> None:
        self._trains()

    def _trains(self) -> None:
        step_s = self._step_s * self._chance.uniform(0.8, 1.3)
        self._add(step_s, max(1, int(self._chance.uniform(1.0, 10.0) / step_s)), is_step=True)

    def _slow(self) -> None:
        doing = self._chance.choice([Doing.COMPUTES, Doing.STARVES, Doing.LOADS])
        self._add(self._chance.uniform(2.0, 90.0), 1, doing, sent=0.02, is_step=True)

    def _evaluates(self) -> None:
        each_s = self._chance.uniform(2.0, 90.0)
        together = tuple(each_s * self._chance.uniform(0.95, 0.99) for _ in range(self._ranks))
        self._add(each_s, 1, self._chance.choice([Doing.COMPUTES, Doing.STARVES]), arrive_s=together)

    def _counts(self) -> None:
        each_s = self._chance.choice([0.02, 0.3, 1.0, 4.0]) * self._chance.uniform(0.5, 1.5)
        self._add(each_s, max(1, int(self._chance.uniform(5.0, 60.0) / each_s)))

    def _gathers(self) -> None:
        self._add(self._chance.uniform(2.0, 60.0), 1, sent=self._chance.uniform(0.3, 0.99))

    def _broadcasts(self) -> None:
        each_s = self._chance.uniform(2.0, 60.0)
        left = [each_s * self._chance.uniform(0.05, 1.0) for _ in range(self._ranks)]
        left[self._chance.randrange(self._ranks)] = each_s
        self._add(each_s, 1, sent=0.99, leave_s=tuple(left))

    def _reduces_in_groups(self) -> None:
        groups = 2 if self._ranks >= 4 else 1
        each_s, sent = self._chance.uniform(2.0, 60.0), self._chance.uniform(0.3, 0.99)
        left = [each_s, each_s * self._chance.uniform(1.0 - sent, 1.0)]
        leave_s = tuple(left[rank % groups] for rank in range(self._ranks))
        self._add(each_s, 1, sent=sent, groups=groups, leave_s=leave_s)

    def _flushes(self) -> None:
        doing = self._chance.choice([Doing.FLUSHES, Doing.CALLS])
        self._add(self._chance.uniform(2.0, 90.0), 1, doing, sent=0.01)

    def _saves(self) -> None:
        self._add(self._chance.uniform(2.0, 90.0), 1, Doing.SAVES, sent=0.01)

    def _rests(self) -> None:
        limit_s = self._chance.choice(LIMITS_S)
        self._add(
            limit_s * self._chance.uniform(0.1, 0.97),
            1,
            Doing.RESTS,
            sent=0.0,
            limit_s=limit_s if self.names_rests else None,
        )

    def _add(
        self,
        each_s: float,
        times: int,
        doing: Doing = Doing.COMPUTES,
        *,
        sent: float = 0.1,
        arrive_s: tuple[float, ...] = (),
        is_step: bool = False,
        limit_s: float | None = None,
        groups: int = 1,
        leave_s: tuple[float, ...] = (),
    ) -> None:
        """Add a stretch. Of each collective, the share `sent` goes to sending data; workers come before that."""
        if not arrive_s:
            drawn = [each_s * (1.0 - sent) * self._chance.random() for _ in range(self._ranks)]
            drawn[self._chance.randrange(self._ranks)] = each_s * (1.0 - sent)
            arrive_s = tuple(drawn)
        begin, first, steps, stepped_at = 0.0, 1, 0, 0.0
        if self._stretches:
            stretch = self._stretches[-1]
            begin, first, steps, stepped_at = (stretch.end, stretch.after, stretch.steps, stretch.stepped_at)
            if stretch.is_step:
                steps, stepped_at = stretch.steps + stretch.times, stretch.end
        self._stretches.append(
            Stretch(begin, each_s, times, first, arrive_s, doing, steps, stepped_at, is_step, limit_s, groups, leave_s)
        )

    # Reading

    def stretch_at(self, now: float) -> Stretch:
        """Return the stretch of a moment."""
        return self._stretches[bisect_right(self._begins, now) - 1]

    def seen(self, rank: int, now: float) -> WorkerStacks:
        """Return what a look shows of a worker."""
        place, sent_s = self._place(rank, now)
        if self._place(rank, now + WATCHED_S)[0] != place:
            return self._worker(rank, replace(place, state=CollectiveState.MOVES), "train", cpus=0.5)
        if place.state is CollectiveState.WAITS:
            sent = int(sent_s * self._bytes_per_s)
            written = sent // WRITTEN_AT_ONCE * WRITTEN_AT_ONCE if rank == place.ranks[0] else 0
            return self._worker(rank, place, "all_reduce", sent=sent, written=written)
        stretch = self.stretch_at(now)
        frame, state, cpus = _LOOKS.get(stretch.doing, (str(stretch.doing), "sleeping", 0.9))
        saved_s = now - stretch.begin if stretch.doing is Doing.SAVES else 0.0
        return self._worker(rank, place, frame, state, cpus=cpus, written=int(saved_s * self._bytes_per_s))

    def _place(self, rank: int, now: float) -> tuple[Place, float]:
        """Return where a worker is, and for how many seconds its collective has been sending data."""
        stretch = self.stretch_at(now)
        done = min(stretch.times - 1, int((now - stretch.begin) / stretch.each_s))
        within_s, number = now - stretch.begin - done * stretch.each_s, stretch.first + done
        everybody = tuple(range(self._ranks))
        if stretch.leave_s and within_s >= stretch.leave_s[rank]:
            return Place(DEFAULT_GROUP, everybody, number + 1, CollectiveState.WAITS), 0.0
        if within_s < stretch.arrive_s[rank]:
            return Place(DEFAULT_GROUP, everybody, number - 1, CollectiveState.DONE), 0.0
        ranks = everybody[rank % stretch.groups :: stretch.groups]
        group = DEFAULT_GROUP if stretch.groups == 1 else f"mesh_dp {rank % stretch.groups + 1}"
        sent_s = max(0.0, within_s - max(stretch.arrive_s[other] for other in ranks))
        return Place(group, ranks, number, CollectiveState.WAITS), sent_s

    def _worker(
        self,
        rank: int,
        place: Place,
        frame: str,
        kernel: str = "sleeping",
        *,
        cpus: float = 0.0,
        sent: int = 0,
        written: int = 0,
    ) -> WorkerStacks:
        collective = Collective(place.group, place.number, place.state, "gloo:all_reduce", "8 Float", 5.0)
        return WorkerStacks(
            *(rank, StackOrigin.WORKER, _STACKS[frame], kernel, "", cpus, collective, "", rank + 1, written),
            network_bytes=1 + sent,
            members=len(place.ranks),
            waits_for="the program rsync (process 99)" if frame == Doing.CALLS else "",
        )


class UnrecordedTraining(CalmTraining):
    """A training of which no recorder shows that a worker waits, since each collective makes connections of its own."""

    def seen(self, rank: int, now: float) -> WorkerStacks:
        """Return what a look shows of a worker."""
        seen = super().seen(rank, now)
        collective = seen.collective
        if collective is None or collective.state is not CollectiveState.WAITS:
            return seen
        done = msgspec.structs.replace(collective, number=collective.number - 1, state=CollectiveState.DONE)
        return msgspec.structs.replace(seen, stacks=_CONNECTS, collective=done)


_CONNECTS = pack_stacks(
    [("MainThread", ("all_reduce (torch/distributed/distributed_c10d.py:3252)", "train (train.py:50)"))]
)

_LOOKS = {
    Doing.SAVES: ("save", "sleeping", 0.0),
    Doing.FLUSHES: ("save", "waiting for IO", 0.0),
    Doing.CALLS: (str(Doing.CALLS), "sleeping", 0.0),
    Doing.RESTS: ("upload", "sleeping", 0.0),
    Doing.STARVES: ("evaluate", "running", 0.01),
}
"""What a look shows of workers that do not compute as usual: the function, the state, and the CPUs that they use."""

_STACKS = {
    name: pack_stacks([("MainThread", (f"{name} (train.py:50)", "<module> (train.py:60)"))])
    for name in ("train", "all_reduce", "save", "upload", "evaluate", *Doing)
}
