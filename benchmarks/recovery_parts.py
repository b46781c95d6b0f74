"""Makes figures of marks: how long there was no training step, and where that time went. Nothing is run here.

Marks are those of `recovery_training`. All moments are in seconds of the monotonic clock.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STOPPED_PARTS = ("detect", "stop", "rendezvous", "spawn", "import", "process group", "first step")
"""The parts of a pause, in order."""

STARTED_PARTS = ("launcher", "preload", "rendezvous", "spawn", "import", "process group", "first step")
"""The parts of a start, in order."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A worker has `begun`, `imported` torch, `connected` to all others, or done a `step`."""

    mark: str
    at: float
    step: int
    pid: int
    rank: int
    world_size: int
    round: str


def parse(lines: str) -> list[Mark]:
    """Read marks; a last line that is not whole yet is left out."""
    return [Mark(**json.loads(line)) for line in lines.splitlines(keepends=True) if line.endswith("\n")]


def of_round(marks: Sequence[Mark], round_: str) -> list[Mark]:
    """Return the marks of one round."""
    return [mark for mark in marks if mark.round == round_]


def steps(marks: Sequence[Mark]) -> list[float]:
    """Return when the steps of one round were done by all its ranks.

    A step that some rank did not do is no progress.
    """
    done: dict[int, list[Mark]] = {}
    for mark in marks:
        if mark.mark == "step":
            done.setdefault(mark.step, []).append(mark)
    return [max(mark.at for mark in of_step) for of_step in done.values() if len(of_step) == of_step[0].world_size]


def last(marks: Sequence[Mark], kind: str) -> float:
    """Return when the slowest rank of one round came so far."""
    return max(mark.at for mark in marks if mark.mark == kind)


def parts(names: Sequence[str], since: float, *until: float) -> dict[str, float]:
    """Divide the time from `since` on by the moments at which each part was over.

    A part that was over before the one in front of it has taken no time, so that all parts add up to the whole.
    """
    divided = {}
    for name, moment in zip(names, until, strict=True):
        divided[name] = max(0.0, moment - since)
        since = max(since, moment)
    return divided


def worker_parts(marks: Sequence[Mark]) -> tuple[float, ...]:
    """Return when the workers of a round had begun, imported, connected, and done their first step."""
    return (last(marks, "begun"), last(marks, "imported"), last(marks, "connected"), min(steps(marks)))


def total(divided: Mapping[str, float]) -> float:
    """Return the whole that was divided."""
    return sum(divided.values())
