"""A schedule of faults, which all launchers meet, and what each made of it, in figures. Nothing is run here.

All moments are in seconds of the monotonic clock.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from statistics import median

from plot import COLOURS, Chart, Series, draw
from recovery_parts import Mark, of_round, steps

CALM_S = (4.0, 12.0)
"""The least time of training between two faults, and its mean, in seconds."""


class Deed(StrEnum):
    """What is done to a job, and the words for it."""

    KILL_WORKER = "worker killed"
    FREEZE_WORKER = "worker frozen"
    KILL_NODE = "node killed"
    SILENCE_NODE = "node silent"
    """Its launcher and its worker are stopped by a signal: no connection ends, as if its cable were cut."""
    REMOVE_NODE = "node leaves"
    """Its launcher gets SIGTERM."""
    LEMON = "lemon"
    """A node's worker is aborted whenever it has done a step, until the node is replaced."""

    @property
    def takes_node(self) -> bool:
        """Whether the node is gone afterwards, and another one comes in its place."""
        return self in {Deed.KILL_NODE, Deed.SILENCE_NODE, Deed.REMOVE_NODE}

    @property
    def is_fault(self) -> bool:
        """Whether somebody is to be named for it."""
        return self is not Deed.REMOVE_NODE


@dataclass(frozen=True, slots=True)
class Planned:
    """One deed of a schedule."""

    deed: Deed
    victim: float
    """Where the victim is among the ranks: from 0 up to, not including, 1."""
    after_s: float
    """How long all nodes have trained before it, in seconds."""


def draw_schedule(seed: int, deeds: int) -> list[Planned]:
    """Return so many deeds; each kind comes as often as any other, but for one."""
    drawn = random.Random(seed)  # noqa: S311 - not for secrets
    kinds = [kind for _ in range(-(-deeds // len(Deed))) for kind in drawn.sample(list(Deed), len(Deed))]
    least, mean = CALM_S
    return [Planned(kind, drawn.random(), least + drawn.expovariate(1 / (mean - least))) for kind in kinds[:deeds]]


class Named(StrEnum):
    """Whom the launcher's output named as the cause of a fault."""

    RIGHT = "the victim"
    WRONG = "others"
    NOBODY = "nobody"


PAUSE_STEPS = 3
"""A time without a new step that is longer than so many steps is a pause: a warm restart takes some five steps."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A deed, and the time until the next one."""

    deed: Deed
    began: float
    ended: float
    by_hand: bool
    """The job did not go on, or not with all its nodes, so a person had to do something about it."""
    named: Named


@dataclass(frozen=True, slots=True)
class Score:
    """A whole schedule under one launcher."""

    launcher: str
    goodput: float
    """The share of the time in which steps were done for the first time."""
    elapsed_s: float
    episodes: tuple[tuple[Episode, float, int], ...]
    """Each with the seconds of its pauses, and the steps that were done again."""
    progress: tuple[tuple[float, int], ...]
    """Seconds since the first step, and the newest step by then: about once a second."""

    @property
    def by_hand(self) -> int:
        """How often a person had to do something about the job."""
        return sum(episode.by_hand for episode, _, _ in self.episodes)

    @property
    def redone(self) -> int:
        """The steps that were done again."""
        return sum(redone for _, _, redone in self.episodes)

    def pauses(self, deed: Deed) -> list[float]:
        """Return the pauses after one kind of deed."""
        return [pause_s for episode, pause_s, _ in self.episodes if episode.deed is deed]

    def named(self, named: Named) -> int:
        """Return how often the cause of a fault was named so."""
        return sum(episode.named is named for episode, _, _ in self.episodes if episode.deed.is_fault)


def picture(scores: Sequence[Score]) -> str:
    """Return an SVG: seconds to the right, the newest step upwards, and a line for each launcher."""
    lines = [Series(each.launcher, each.progress, colour) for each, colour in zip(scores, COLOURS, strict=False)]
    longest, most = max(each.elapsed_s for each in scores), max(each.progress[-1][1] for each in scores)
    return draw(Chart("steps", {"0": 0, f"{most:,}": most}, {"0": 0, f"{longest:.0f} s": longest}, lines))


def score(launcher: str, marks: Sequence[Mark], episodes: Sequence[Episode]) -> Score:
    """Return the score of a schedule, which is over at the end of its last episode."""
    firsts = sorted((at, step) for step, at in _first_times(marks).items())
    usual_s = _step_s(marks)
    rows = tuple((each, _pause_s(each, firsts, usual_s), _redone(each, marks)) for each in episodes)
    began, elapsed_s = firsts[0][0], episodes[-1].ended - firsts[0][0]
    progress: list[tuple[float, int]] = []
    for at, step in firsts:
        if not progress or at - began >= progress[-1][0] + 1:
            progress.append((round(at - began, 2), step))
    return Score(launcher, min(1.0, len(firsts) * usual_s / elapsed_s), elapsed_s, rows, tuple(progress))


def _first_times(marks: Sequence[Mark]) -> dict[int, float]:
    """Return when each step was done for the first time, by any of its ranks."""
    firsts: dict[int, float] = {}
    for mark in marks:
        if mark.mark == "step":
            firsts[mark.step] = min(mark.at, firsts.get(mark.step, mark.at))
    return firsts


def _step_s(marks: Sequence[Mark]) -> float:
    """Return the median time from one step to the next within a round."""
    rounds = dict.fromkeys(mark.round for mark in marks)
    return median(b - a for round_ in rounds for a, b in pairwise(sorted(steps(of_round(marks, round_)))))


def _pause_s(episode: Episode, firsts: Sequence[tuple[float, int]], usual_s: float) -> float:
    """Return the seconds of the pauses between new steps that end within an episode."""
    within = [b - a for (a, _), (b, _) in pairwise(firsts) if episode.began <= b < episode.ended]
    return sum(gap for gap in within if gap > PAUSE_STEPS * usual_s)


def _redone(episode: Episode, marks: Sequence[Mark]) -> int:
    """Return how many steps the rounds that begin within an episode did again."""
    redone, newest = 0, -1
    for _, of_one in groupby(sorted((m for m in marks if m.mark == "step"), key=_began(marks)), key=lambda m: m.round):
        found = list(of_one)
        first_at, first = min((mark.at, mark.step) for mark in found)
        if episode.began <= first_at < episode.ended and newest >= 0:
            redone += max(0, newest + 1 - first)
        newest = max(newest, *(mark.step for mark in found))
    return redone


def _began(marks: Sequence[Mark]) -> Callable[[Mark], float]:
    """Return a key that sorts marks by the first one of their round."""
    began = dict[str, float]()
    for mark in marks:
        began[mark.round] = min(mark.at, began.get(mark.round, mark.at))
    return lambda mark: began[mark.round]
