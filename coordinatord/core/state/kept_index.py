"""What the nodes of a run keep of its training state, by step: which steps are whole, and which are protected.

The newest whole step must not be overwritten before a newer one is safe everywhere. A node does not know what others
hold, so the coordinator names two steps: `whole`, and a `candidate` for its place. Nodes protect both and say so. Only
when all parts of the candidate are protected does it become the whole one, and the old one may be overwritten. With one
name, a node could overwrite the new step while another, which has heard of it already, gives up the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coordinatord.core.state.durable import DurableRun
from coordinatord.core.state.persisting import Persisting
from coordinatord.core.values.resume_plan import ResumePlan
from coordinatord.core.values.shards import are_whole
from coordinatord.protocol.kept_parts import KeptParts, KeptStep

Parts = tuple[KeptParts, ...]


class _StepHolders:
    """Who has parts of one step."""

    __slots__ = ("_protected", "_whole", "held", "ranks", "ranks_protected")

    def __init__(self) -> None:
        self.held: dict[str, Parts] = {}
        self.ranks = self.ranks_protected = 0
        """How many ranks are held with big state, and protected; one that two nodes hold counts twice."""
        self._whole: bool | None = None
        self._protected: bool | None = None

    def put(self, node: str, parts: Parts) -> None:
        """Let a node hold these parts and no others."""
        for sign, some in ((-1, self.held.pop(node, ())), (1, parts)):
            self.ranks += sign * sum(one.ranks for one in some if one.big)
            self.ranks_protected += sign * sum(one.ranks for one in some if one.big and one.protected)
        if parts:
            self.held[node] = parts
        self._whole = self._protected = None

    @property
    def is_whole(self) -> bool:
        """Whether each shard has a holder. It is not worked out before the parts could be enough."""
        if self._whole is None:
            self._whole = self._enough(self.ranks) and are_whole(self._big())
        return self._whole

    @property
    def is_protected(self) -> bool:
        """Whether each shard has a holder that protects it."""
        if self._protected is None:
            parts = [one for one in self._big() if one.protected]
            self._protected = self._enough(self.ranks_protected) and are_whole(parts)
        return self._protected

    def _big(self) -> list[KeptParts]:
        return [one for parts in self.held.values() for one in parts if one.big]

    def _enough(self, ranks: int) -> bool:
        some = next(iter(self.held.values()), ())
        return bool(some) and ranks >= some[0].shards


class KeptIndex:
    """The kept state of one run, as its nodes report it."""

    def __init__(self, durable: DurableRun) -> None:
        """Begin with what the records hold: what the members keep is not known before they are heard."""
        self._unheard = set(durable.members)
        self._of_node: dict[str, Parts] = {}
        self._of_step: dict[KeptStep, _StepHolders] = {}
        self.whole: KeptStep | None = None
        """The newest step that is whole and protected; it stays until a newer one takes its place."""
        self.candidate: KeptStep | None = None
        """A newer step that is whole and not yet protected everywhere."""
        self._passed: KeptStep | None = None
        """The last candidate; one that was given up may be gone on some node, so it never is one again."""
        self.changes = self.losses = 0
        """How often parts have come or gone, and how often they have gone."""
        self.plan: tuple[ResumePlan, int, int] | None = None
        """The plan of the current round, and the two numbers as of when it was made."""
        self.failed: dict[str, str] = {}
        """Why nodes of the current round could not get what their workers resume from."""
        self.disk = Persisting()
        self.pinned: KeptStep | None = None
        """The step that is being written to the disk, and stays protected meanwhile."""
        resume = durable.resume
        if resume is not None and resume.disk is None and not durable.stepped and not durable.state.ended:
            self.whole = self._passed = resume.at

    def __bool__(self) -> bool:
        """Return whether any node keeps anything."""
        return bool(self._of_node)

    @property
    def protected(self) -> tuple[KeptStep, ...] | None:
        """What nodes are told to protect; None while it is not known what they do."""
        named = (self.whole, self.candidate, self.pinned)
        steps = tuple(dict.fromkeys(step for step in named if step is not None))
        return None if self._unheard and not steps else steps

    def note(self, node: str, parts: Parts) -> bool:
        """Take in what a node keeps; return whether that is news."""
        first = node in self._unheard
        self._unheard.discard(node)
        before = self._of_node.pop(node, ())
        if parts:
            self._of_node[node] = parts
        if parts == before:
            return first
        self.changes += 1
        was, now = _by_step(before), _by_step(parts)
        for at in was.keys() | now.keys():
            self._put(at, node, now.get(at, ()))
            self.losses += not _has_all(now.get(at, ()), was.get(at, ()))
        return True

    def drop(self, node: str) -> None:
        """Forget a node that is gone."""
        self.note(node, ())

    def _put(self, at: KeptStep, node: str, parts: Parts) -> None:
        holders = self._of_step.setdefault(at, _StepHolders())
        if holders.held.get(node, ()) != parts:
            holders.put(node, parts)
        if not holders.held:
            del self._of_step[at]

    @property
    def all_heard(self) -> bool:
        """Whether every member has said what it keeps, since the coordinator was started."""
        return not self._unheard

    def is_whole(self, at: KeptStep) -> bool:
        """Whether each shard of a step has a holder."""
        holders = self._of_step.get(at)
        return holders is not None and holders.is_whole

    @property
    def newest_whole(self) -> KeptStep | None:
        """The newest step that is whole, whether it is protected yet or not."""
        return self._newest(lambda one: one.is_whole)

    def steps(self) -> list[KeptStep]:
        """Return the steps of which anything is kept, the newest first."""
        return sorted(self._of_step, reverse=True)

    def holders(self, at: KeptStep) -> dict[str, Parts]:
        """Return who keeps parts of a step."""
        holders = self._of_step.get(at)
        return {} if holders is None else holders.held

    def begin_round(self, at: KeptStep | None) -> None:
        """Protect the step that the round resumes from, and no other; it was chosen while no worker lived."""
        self.whole, self.candidate, self._passed = at, None, at
        self.plan = None
        self.failed.clear()

    def clear(self) -> None:
        """Forget everything: the run is over."""
        self._unheard.clear()
        self._of_node.clear()
        self._of_step.clear()
        self.pinned = None
        self.begin_round(None)

    def advance(self) -> bool:
        """Find the steps to protect anew; return whether they have changed."""
        before = self.protected
        self._judge_candidate()
        if self.whole is None and self._passed is None:
            # After a restart, what nodes protect already comes first; it may not be known before all are heard.
            self.whole = self._passed = self._newest(lambda one: one.is_protected)
        if self.candidate is None and (self.whole is not None or not self._unheard):
            newest = self.newest_whole
            if newest is not None and (self._passed is None or newest > self._passed):
                self.candidate = self._passed = newest
        return self.protected != before

    def _judge_candidate(self) -> None:
        """Let the candidate take its place once it is protected everywhere; give it up if it is whole no longer."""
        holders = None if self.candidate is None else self._of_step.get(self.candidate)
        if holders is not None and holders.is_protected:
            self.whole, self.candidate = self.candidate, None
        elif holders is None or not holders.is_whole:
            self.candidate = None

    def _newest(self, holds: Callable[[_StepHolders], bool]) -> KeptStep | None:
        return max((at for at, holders in self._of_step.items() if holds(holders)), default=None)


def _by_step(parts: Parts) -> dict[KeptStep, Parts]:
    found: dict[KeptStep, Parts] = {}
    for one in parts:
        found[one.at] = (*found.get(one.at, ()), one)
    return found


def _has_all(now: Parts, before: Parts) -> bool:
    """Whether a node still has all parts of a step that it had; whether it protects them does not matter."""
    return {replace(one, protected=False) for one in before} <= {replace(one, protected=False) for one in now}
