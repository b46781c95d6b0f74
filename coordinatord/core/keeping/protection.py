"""Which steps nodes must not overwrite: the newest whole one, and the one that is to take its place.

The newest whole step must not be overwritten before a newer one is safe everywhere. A node does not know what others
hold, so the coordinator names two steps: `whole`, and a `candidate` for its place. Nodes protect both, and report that.
Only when all parts of the candidate are protected does it become the whole one, and the old one may be overwritten.
With one name, a node could overwrite the new step while another, which protects it already, gives up the old one.

What only one host has is copied to another one, and those copies are protected like everything else. The candidate
waits for its copies too, so the old step and its copies stay until the new one outlives the loss of a host.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from coordinatord.core.keeping.copy_plans import CopyPlans
from coordinatord.core.keeping.kept_index import KeptIndex
from coordinatord.core.keeping.persisting import Persisting
from coordinatord.protocol.kept_state import KeptStep


class StepState(StrEnum):
    """How a step stands."""

    NONE = "none"
    """Nodes may overwrite it."""
    PROPOSED = "proposed"
    """Nodes are to protect it, as the candidate. One of them may not have heard that yet."""
    PROTECTED = "protected"
    """All nodes that hold it protect it, and it is copied. It stays until a newer one takes its place."""


class Protection:
    """The agreement of the nodes of one run on the steps that they protect."""

    def __init__(self, index: KeptIndex, copies: CopyPlans, disk: Persisting, resumed: KeptStep | None) -> None:
        """Begin with the step that the round resumed from, if that is still to be protected."""
        self.index, self.copies, self._disk = index, copies, disk
        self.whole = resumed
        """The newest step that is whole and protected; it stays until a newer one takes its place."""
        self.candidate: KeptStep | None = None
        """A newer step that is whole and not yet protected everywhere."""
        self.passed = resumed
        """The newest candidate so far. One that was given up may be gone on some node, so it is no candidate again."""
        self.is_ending = False
        """Whether the round is being stopped, so that its last step has to find a place."""

    @property
    def pinned(self) -> KeptStep | None:
        """The step that is being written to the disk, and stays protected meanwhile."""
        return self._disk.pinned

    @property
    def steps(self) -> tuple[KeptStep, ...] | None:
        """The steps that nodes are to protect; None while it is not known which ones they protect now."""
        named = (self.whole, self.candidate, self.pinned)
        steps = tuple(dict.fromkeys(step for step in named if step is not None))
        return steps if steps or self.index.all_heard else None

    def advance(self) -> bool:
        """Find the steps to protect anew; return whether they have changed."""
        before = self.steps
        for row in ROWS:
            at = row.when(self)
            if at is not None and self.state_of(at) is row.source:
                self._move(at, row.target)
        self.copies.keep_only(self.steps or ())
        return self.steps != before

    def state_of(self, at: KeptStep) -> StepState:
        """Return how a step stands."""
        if at == self.candidate:
            return StepState.PROPOSED
        return StepState.PROTECTED if at == self.whole else StepState.NONE

    def _move(self, at: KeptStep, target: StepState) -> None:
        self.candidate = at if target is StepState.PROPOSED else None
        if target is StepState.PROTECTED:
            self.whole = at
        self.passed = at if self.passed is None else max(self.passed, at)

    def begin_round(self, at: KeptStep | None) -> None:
        """Protect the step that the round resumes from; it was chosen while no worker lived.

        The older one that was whole before stays until there are copies of this one.
        """
        stays = self.whole is not None and at is not None and self.whole < at and self.index.is_whole(self.whole)
        self.whole, self.candidate = (self.whole, at) if stays else (at, None)
        self.passed = max((step for step in (self.passed, at) if step is not None), default=None)
        self.is_ending = False

    def clear(self) -> None:
        """Protect nothing: the run is over."""
        self.whole = self.candidate = self.passed = None


# Conditions: each returns the step of which it holds, or None


def is_safe(known: Protection) -> KeptStep | None:
    """Return the proposed step if all nodes that hold it protect it, and its copies are made."""
    if known.candidate is None:
        return None
    holders, plan = known.index.step_holders(known.candidate), known.copies.plans.get(known.candidate)
    if holders is None or not holders.is_protected_by_all:
        return None
    return known.candidate if plan is not None and plan.is_made(holders.held, known.copies.problems) else None


def is_broken(known: Protection) -> KeptStep | None:
    """Return the proposed step if a part of it is gone."""
    at = known.candidate
    return None if at is None or known.index.is_whole(at) else at


def was_protected(known: Protection) -> KeptStep | None:
    """Return the newest step that nodes protect already, after a restart.

    One that has copies comes first, as a newer one may not have them yet; and it is known before all nodes are heard.
    """
    if known.whole is not None or known.passed is not None:
        return None
    index = known.index
    return index.newest(lambda holders: holders.is_protected_twice) or (
        index.newest(lambda holders: holders.is_protected) if index.all_heard else None
    )


def is_newer(known: Protection) -> KeptStep | None:
    """Return the newest whole step if none is proposed, it was not proposed before, and nodes have a place for it."""
    if known.candidate is not None or (known.whole is None and not known.index.all_heard):
        return None
    newest = known.index.newest_whole
    if newest is None or (known.passed is not None and newest <= known.passed) or _is_last_place(known, newest):
        return None
    return newest


def _is_last_place(known: Protection, at: KeptStep) -> bool:
    """Whether a node would have no place for the last step of the round if this one was protected too.

    A state that all nodes have alike is saved when the round breaks, and that may happen at any time.
    """
    alike = any(part.shards == 1 for parts in known.index.holders(at).values() for part in parts)
    return (alike or known.is_ending) and known.pinned is not None and known.pinned != known.whole


class ProtectionRow(Struct, frozen=True):
    """How one step comes to stand otherwise."""

    source: StepState
    when: Callable[[Protection], KeptStep | None]
    target: StepState


ROWS = (
    ProtectionRow(StepState.PROPOSED, is_safe, StepState.PROTECTED),
    ProtectionRow(StepState.PROPOSED, is_broken, StepState.NONE),
    ProtectionRow(StepState.NONE, was_protected, StepState.PROTECTED),
    ProtectionRow(StepState.NONE, is_newer, StepState.PROPOSED),
)
"""All rows, in the order in which each is looked at once. A step that is protected stays so until another one is."""
