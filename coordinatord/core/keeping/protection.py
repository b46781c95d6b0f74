"""The agreement of the nodes on the steps that none of them overwrites: the newest whole one, and its successor.

A node has places for three steps in memory, and workers overwrite old ones. A step is *whole*, so that a round can
resume from it, only while the nodes together hold all of it; a node does not know what others hold. So the coordinator
names two steps that nodes are to protect: `whole`, and the `candidate` to replace it. Nodes report what they protect.
Only when all parts of the candidate are protected does it replace the whole step, which may then be overwritten. If
only the newest step was named, a node that has heard its name would overwrite the old step, while another one that has
not heard it could overwrite the new step. Then no step would be whole.

State that only one host has is copied to another host, and the copies are protected as well. The candidate waits for
its copies, so the old step and its copies stay until the new step survives the loss of a host.

A step that is being written to the disk is `pinned`, and protected too. If all ranks have the same state, no other step
becomes the candidate meanwhile: so saves can go on in the other two places.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from coordinatord.core.keeping.bad_steps import has_spoiled
from coordinatord.core.keeping.copy_plan import CopyPlans
from coordinatord.core.keeping.kept_index import KeptIndex
from coordinatord.core.keeping.write_progress import Persisting
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.protocol.kept_state import KeptStep


class StepState(StrEnum):
    """Whether nodes may overwrite a step."""

    NONE = "none"
    """Nodes may overwrite it."""
    PROPOSED = "proposed"
    """It is the candidate: nodes are asked to protect it, and some of them may not know that yet."""
    PROTECTED = "protected"
    """All nodes that hold it protect it, and it is copied. It stays so until a newer step replaces it."""


class Protection:
    """The agreement of the nodes of one run on the steps that they protect."""

    def __init__(self, index: KeptIndex, copies: CopyPlans, disk: Persisting, durable: DurableRun) -> None:
        """Begin with the step that the round resumed from, if that is still to be protected.

        Otherwise nothing is known after a restart of the coordinator, until nodes report what they protect.
        """
        self.index, self.copies, self._disk, self._durable = index, copies, disk, durable
        self.whole = _resumed(durable)
        """The newest step that is whole and protected; it stays until a newer step replaces it."""
        self.candidate: KeptStep | None = None
        """A newer step that is whole, but not yet copied, or not yet protected by all its holders."""
        self.passed = self.whole
        """This step and older ones are not proposed any more, since a node may have overwritten them and not reported
        that yet."""
        self.is_stopping = False
        """Whether the round is being stopped, so that nodes need a free place for its last step."""

    @property
    def pinned(self) -> KeptStep | None:
        """The step that is being written to the disk, which nodes protect meanwhile."""
        return self._disk.pinned

    @property
    def steps(self) -> tuple[KeptStep, ...] | None:
        """The steps that nodes are to protect; None while it is not known which ones they protect now."""
        named = (self.whole, self.candidate, self.pinned)
        steps = tuple(dict.fromkeys(step for step in named if step is not None))
        return steps if steps or self.index.all_heard else None

    def covers(self, at: KeptStep) -> bool:
        """Whether nodes are to protect a step, and have reported that they protect all of it."""
        return at in (self.steps or ()) and self.index.step_holders(at).is_protected

    def is_useful(self, at: KeptStep) -> bool:
        """Whether a step is whole, and the next round may resume from it."""
        return self.index.is_whole(at) and not has_spoiled(self._durable, at)

    def advance(self) -> bool:
        """Check each row of the table once, in order; return whether the steps to protect have changed."""
        before = self.steps
        for row in ROWS:
            at = row.when(self)
            if at is not None and self.state_of(at) is row.source:
                self._move(at, row.target)
        self.copies.retain(self.steps or ())
        return self.steps != before

    def state_of(self, at: KeptStep) -> StepState:
        """Return the state of a step."""
        if at == self.candidate:
            return StepState.PROPOSED
        return StepState.PROTECTED if at == self.whole else StepState.NONE

    def _move(self, at: KeptStep, target: StepState) -> None:
        self.candidate = at if target is StepState.PROPOSED else None
        if target is StepState.PROTECTED:
            self.whole = at
        self.passed = at if self.passed is None else max(self.passed, at)

    def begin_round(self, at: KeptStep | None) -> None:
        """Protect the step that the round resumes from (None: it begins anew), and no others.

        There is one exception: an older step that is whole stays until this one has its copies, if there is a place.
        """
        self.is_stopping = False
        keeps_older = (
            self.whole is not None
            and at is not None
            and self.whole < at
            and self.index.is_whole(self.whole)
            and not _leaves_no_place(self, at)
        )
        self.whole, self.candidate = (self.whole, at) if keeps_older else (at, None)
        # Workers of the new round may overwrite any other step of earlier rounds.
        known = (self.passed, at, *self.index.steps()[:1])
        self.passed = max((step for step in known if step is not None), default=None)

    def clear(self) -> None:
        """Protect nothing: the run is over."""
        self.whole = self.candidate = self.passed = None


def _resumed(durable: DurableRun) -> KeptStep | None:
    """Return the step in memory that the round resumes from, if it has made no step yet."""
    resume = durable.resume
    is_protected = resume is not None and resume.disk is None and not durable.stepped and not durable.state.ended
    return resume.at if resume is not None and is_protected else None


# Conditions: each returns the step for which it holds, or None


def safe_candidate(protection: Protection) -> KeptStep | None:
    """Return the candidate if all nodes that hold it protect it, and its copies are made."""
    at, index, copies = protection.candidate, protection.index, protection.copies
    if at is None:
        return None
    holders, plan = index.step_holders(at), copies.plans.get(at)
    if not holders.is_protected_by_all:
        return None
    return at if plan is not None and plan.is_made(holders.parts, copies.problems) else None


def broken_candidate(protection: Protection) -> KeptStep | None:
    """Return the candidate if a part of it is gone, a round could not resume from it, or nodes have no place for it."""
    at = protection.candidate
    if at is None or (protection.is_useful(at) and not _leaves_no_place(protection, at)):
        return None
    return at


def protected_before_restart(protection: Protection) -> KeptStep | None:
    """Return the newest useful step that nodes protect already, if the coordinator was restarted and knows none.

    A step with copies comes first, at once: a newer one may still lack its copies. A step without copies waits until
    all nodes are heard, since one of them may still report a step with copies.
    """
    if protection.whole is not None or protection.passed is not None:
        return None
    index = protection.index
    useful = [at for at in index.steps() if protection.is_useful(at)]
    twice = (at for at in useful if index.step_holders(at).is_protected_twice)
    once = (at for at in useful if index.all_heard and index.step_holders(at).is_protected)
    return next(twice, None) or next(once, None)


def new_candidate(protection: Protection) -> KeptStep | None:
    """Return the newest whole step if there is no candidate, it is not `passed`, and nodes have a place for it.

    A spoiled step (damaged, or different between ranks) does not count: it would replace a step that is of use.
    """
    if protection.candidate is not None or (protection.whole is None and not protection.index.all_heard):
        return None
    newest, passed = protection.index.newest_whole, protection.passed
    if newest is None or not protection.is_useful(newest) or (passed is not None and newest <= passed):
        return None
    return None if _leaves_no_place(protection, newest) else newest


def _leaves_no_place(protection: Protection, at: KeptStep) -> bool:
    """Whether nodes that protect this step, while another is being written to the disk, would lack a place for a save.

    The whole step, this one and the one that is being written may take all three places. A round that is being stopped
    needs one of them for its last step.

    State that is the same on all ranks always needs two places for its saves at an interval. If there is only one, it
    has the newest step, which is overwritten only by a step that can be halved more often. So most saves would
    be left out until the write ends, which takes `write_progress.STUCK_S` if the disk hangs. If each rank has its own
    state, this step is named all the same: otherwise it would not be copied to another host meanwhile.
    """
    if protection.pinned in {None, at}:
        return False
    first = next((part for parts in protection.index.holders(at).values() for part in parts), None)
    is_replicated = first is not None and first.shards == 1
    return is_replicated or (protection.is_stopping and protection.pinned != protection.whole)


class ProtectionRow(Struct, frozen=True):
    """One transition: the step that the condition returns goes from `source` to `target`, if it is in `source`."""

    source: StepState
    when: Callable[[Protection], KeptStep | None]
    target: StepState


ROWS = (
    ProtectionRow(StepState.PROPOSED, broken_candidate, StepState.NONE),
    ProtectionRow(StepState.PROPOSED, safe_candidate, StepState.PROTECTED),
    ProtectionRow(StepState.NONE, protected_before_restart, StepState.PROTECTED),
    ProtectionRow(StepState.NONE, new_candidate, StepState.PROPOSED),
)
"""All rows, in the order in which they are checked. No row ends `PROTECTED`: the next protected step does."""
