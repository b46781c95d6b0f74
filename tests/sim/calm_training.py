"""A healthy training, drawn by chance: what its workers do at each moment, and what a look shows of them.

All that a training does is a row of collectives. Before each of them a worker does something by itself, and those that
have come wait for the others; then its data is sent. A step is a collective that ends with `ctx.step`. A whole history
is drawn before it is played, so that each question about a moment is answered by itself.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum

from coordinatord.protocol.stack_messages import Collective, CollectiveState, StackOrigin, WorkerStacks, pack_stacks

WATCHED_S = 0.2
"""A worker that is asked compares the recorder's counters over this time."""

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
    """It writes a checkpoint, to a disk that is slow."""
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
    """How long after the begin of each collective a worker comes to it, by rank."""
    doing: Doing
    """What the last worker does that comes, and all others until they come."""
    steps: int
    """The steps that were done before it."""
    stepped_at: float
    """When the last of these was done."""
    is_step: bool
    """Each of its collectives ends a step."""
    limit_s: float | None = None
    """The limit of the section that its last worker is in."""

    @property
    def last(self) -> int:
        """The rank that comes last."""
        return self.arrive_s.index(max(self.arrive_s))

    def stepped(self, now: float) -> tuple[int, float]:
        """Return how many steps were done at a moment of it, and when the last of them was."""
        done = int((now - self.begin) / self.each_s) if self.is_step else 0
        return self.steps + done, self.begin + done * self.each_s if done else self.stepped_at

    @property
    def end(self) -> float:
        """When its last collective is over."""
        return self.begin + self.each_s * self.times


class CalmTraining:
    """The history of one training. Times are seconds after its begin, and ranks are global."""

    def __init__(self, chance: random.Random, ranks: int, seconds: float) -> None:
        self._chance, self._ranks = chance, ranks
        self._step_s = 10 ** chance.uniform(-1.3, 0.9)
        self._bytes_per_s = 10 ** chance.uniform(5.3, 9.0)
        """How fast data of a collective, or of a checkpoint, gets on, for each worker."""
        self._stretches: list[Stretch] = []
        draws = (self._trains, self._slow, self._evaluates, self._counts, self._gathers, self._saves, self._rests)
        self._trains()
        while self._stretches[-1].end < seconds:
            chance.choice(draws)()
            if chance.random() < 0.7:
                self._trains()
        self._begins = [stretch.begin for stretch in self._stretches]

    # Drawing

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

    def _saves(self) -> None:
        self._add(self._chance.uniform(2.0, 90.0), 1, Doing.SAVES, sent=0.01)

    def _rests(self) -> None:
        limit_s = self._chance.choice(LIMITS_S)
        self._add(limit_s * self._chance.uniform(0.1, 0.97), 1, Doing.RESTS, sent=0.0, limit_s=limit_s)

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
    ) -> None:
        """Add a stretch, of whose collectives this part goes to sending data; workers come at any time before it."""
        if not arrive_s:
            drawn = [each_s * (1.0 - sent) * self._chance.random() for _ in range(self._ranks)]
            drawn[self._chance.randrange(self._ranks)] = each_s * (1.0 - sent)
            arrive_s = tuple(drawn)
        begin, first, steps, stepped_at = 0.0, 1, 0, 0.0
        if self._stretches:
            stretch = self._stretches[-1]
            begin, first, steps, stepped_at = (
                stretch.end,
                stretch.first + stretch.times,
                stretch.steps,
                stretch.stepped_at,
            )
            if stretch.is_step:
                steps, stepped_at = stretch.steps + stretch.times, stretch.end
        self._stretches.append(
            Stretch(begin, each_s, times, first, arrive_s, doing, steps, stepped_at, is_step, limit_s)
        )

    # Asking

    def stretch_at(self, now: float) -> Stretch:
        """Return the stretch of a moment."""
        return self._stretches[bisect_right(self._begins, now) - 1]

    def seen(self, rank: int, now: float) -> WorkerStacks:
        """Return what a look shows of a worker."""
        number, waits, stretch, within_s = self._place(rank, now)
        moved = self._place(rank, now + WATCHED_S)[:2] != (number, waits)
        sent_s = max(0.0, within_s - max(stretch.arrive_s))
        if moved:
            return self._worker(rank, number, CollectiveState.MOVES, "train", cpus=0.5)
        if waits:
            return self._worker(rank, number, CollectiveState.WAITS, "all_reduce", busy_s=sent_s)
        match stretch.doing:
            case Doing.SAVES:
                return self._worker(rank, number - 1, CollectiveState.DONE, "save", "waiting for IO", busy_s=within_s)
            case Doing.RESTS:
                return self._worker(rank, number - 1, CollectiveState.DONE, "upload")
            case Doing.STARVES:
                return self._worker(rank, number - 1, CollectiveState.DONE, "evaluate", "running", cpus=0.01)
            case _:
                return self._worker(rank, number - 1, CollectiveState.DONE, str(stretch.doing), cpus=0.9)

    def _place(self, rank: int, now: float) -> tuple[int, bool, Stretch, float]:
        """Return the collective that a worker is in or comes to, whether it waits there, and for how long it is on."""
        stretch = self.stretch_at(now)
        done = min(stretch.times - 1, int((now - stretch.begin) / stretch.each_s))
        within_s = now - stretch.begin - done * stretch.each_s
        return stretch.first + done, within_s >= stretch.arrive_s[rank], stretch, within_s

    def _worker(
        self,
        rank: int,
        number: int,
        state: CollectiveState,
        frame: str,
        kernel: str = "sleeping",
        *,
        cpus: float = 0.0,
        busy_s: float = 0.0,
    ) -> WorkerStacks:
        collective = Collective("default_pg", number, state, "gloo:all_reduce", "8 Float", 5.0)
        stacks, moved = _STACKS[frame], int(busy_s * self._bytes_per_s)
        return WorkerStacks(rank, StackOrigin.WORKER, stacks, kernel, "", cpus, collective, "", rank + 1, moved)


_STACKS = {
    name: pack_stacks([("MainThread", (f"{name} (train.py:50)", "<module> (train.py:60)"))])
    for name in ("train", "all_reduce", "save", "upload", "evaluate", *Doing)
}
