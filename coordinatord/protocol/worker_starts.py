"""How the workers of a round were begun, as nodes report it."""

from __future__ import annotations

from enum import StrEnum

from coordinatord.protocol.fields import Count, Sentence
from coordinatord.protocol.schema import Strict


class ColdCause(StrEnum):
    """What kept workers from being forked from the parent interpreter."""

    COMMAND = "command"
    """The command line: it begins with no Python that can be a parent."""
    IMPORT = "import"
    """A module of `--preload` that cannot be imported."""
    PROCESS = "process"
    """A module that starts a process or a thread, which forks lose."""
    GPU = "gpu"
    """A module that opens CUDA or ROCm, which forks cannot use."""
    PARENT = "parent"
    """The parent interpreter: it could not be started, was too slow, did not fork or has ended."""


class WhyCold(Strict, frozen=True):
    """Why workers that were to be forked are cold."""

    cause: ColdCause
    text: Sentence


class WorkerStarts(Strict, frozen=True):
    """The workers of a node in its round, by the way in which each was begun."""

    in_place: Count
    """They were in the round before, as the same processes."""
    warm: Count
    """They were forked from the parent interpreter."""
    cold: Count
    why_not: Sentence = ""
    """Why workers that could have stayed did not; empty if they did, never could have, or were killed."""
    why_cold: WhyCold | None = None
    """Why some are cold though `--preload` names modules; None if none is."""
