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

from coordinatord.core.keeping.bad_steps import has_spoiled
from coordinatord.core.keeping.copy_plan import CopyPlans
from coordinatord.core.keeping.kept_index import KeptIndex
from coordinatord.core.keeping.write_progress import Persisting
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.protocol.kept_state import KeptStep


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

    def _is_useful(self, at: KeptStep) -> bool:
        """Whether a step is whole, and the next round may resume from it."""
        return self.index.is_whole(at) and not has_spoiled(self._durable, at)

    def advance(self) -> bool:
        """Bring the agreement up to date with what nodes report; return whether the steps to protect have changed."""
        before = self.steps
        if self.candidate is not None and self._is_broken(self.candidate):
            self.candidate = None
        if self.candidate is not None and self._is_safe(self.candidate):
            self.whole, self.candidate = self.candidate, None
        if self.whole is None and self.passed is None:
            self.whole = self.passed = self._protected_before_restart()
        if (newer := self._new_candidate()) is not None:
            self.candidate = self.passed = newer
        self.copies.retain(self.steps or ())
        return self.steps != before

    def _is_safe(self, candidate: KeptStep) -> bool:
        """Whether all nodes that hold the candidate protect it, and its copies are made."""
        holders, copies = self.index.step_holders(candidate), self.copies
        plan = copies.plans.get(candidate)
        return holders.is_protected_by_all and plan is not None and plan.is_made(holders.parts, copies.problems)

    def _is_broken(self, candidate: KeptStep) -> bool:
        """Whether a part of the candidate is gone, a round could not resume from it, or nodes have no place for it."""
        return not self._is_useful(candidate) or self._leaves_no_place(candidate)

    def _protected_before_restart(self) -> KeptStep | None:
        """Return the newest useful step that nodes protect already, for a restarted coordinator, which knows none.

        A step with copies comes first, at once: a newer one may still lack its copies. A step without copies waits
        until all nodes are heard, since one of them may still report a step with copies.
        """
        index = self.index
        useful = [at for at in index.steps() if self._is_useful(at)]
        twice = (at for at in useful if index.step_holders(at).is_protected_twice)
        once = (at for at in useful if index.all_heard and index.step_holders(at).is_protected)
        return next(twice, None) or next(once, None)

    def _new_candidate(self) -> KeptStep | None:
        """Return the newest whole step if there is no candidate, it is not `passed`, and nodes have a place for it.

        A spoiled step (damaged, or different between ranks) does not count: it would replace a step that is of use.
        """
        if self.candidate is not None or (self.whole is None and not self.index.all_heard):
            return None
        newest, passed = self.index.newest_whole, self.passed
        if newest is None or not self._is_useful(newest) or (passed is not None and newest <= passed):
            return None
        return None if self._leaves_no_place(newest) else newest

    def _leaves_no_place(self, at: KeptStep) -> bool:
        """Whether nodes that protect this step while another is written to the disk would lack a place for a save.

        The whole step, this one and the one that is being written may take all three places. A round that is being
        stopped needs one of them for its last step.

        State that is the same on all ranks always needs two places for its saves at an interval. If there is only one,
        it has the newest step, which is overwritten only by a step that can be halved more often. So most saves would
        be left out until the write ends, which takes `write_progress.STUCK_S` if the disk hangs. If each rank has its
        own state, this step is named all the same: otherwise it would not be copied to another host meanwhile.
        """
        if self.pinned in {None, at}:
            return False
        first = next((part for parts in self.index.holders(at).values() for part in parts), None)
        is_replicated = first is not None and first.shards == 1
        return is_replicated or (self.is_stopping and self.pinned != self.whole)

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
            and not self._leaves_no_place(at)
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
