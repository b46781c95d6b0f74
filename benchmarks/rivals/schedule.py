"""The faults that all launchers meet, drawn from a seed: the same kinds, in the same order, with the same victims."""

import random
from dataclasses import dataclass
from enum import StrEnum

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


def draw(seed: int, deeds: int) -> list[Planned]:
    """Return so many deeds; each kind comes as often as any other, but for one."""
    drawn = random.Random(seed)  # noqa: S311 - not for secrets
    kinds = [kind for _ in range(-(-deeds // len(Deed))) for kind in drawn.sample(list(Deed), len(Deed))]
    least, mean = CALM_S
    return [Planned(kind, drawn.random(), least + drawn.expovariate(1 / (mean - least))) for kind in kinds[:deeds]]
