"""What the nodes of a run keep of its training state, by step: which steps are whole, and which are protected.

The newest whole step must not be overwritten before a newer one is safe everywhere. A node does not know what others
hold, so the coordinator names two steps: `whole`, and a `candidate` for its place. Nodes protect both, and report that.
Only when all parts of the candidate are protected does it become the whole one, and the old one may be overwritten.
With one name, a node could overwrite the new step while another, which protects it already, gives up the old one.

What only one host has is copied to another one, and those copies are protected like everything else. The candidate
waits for its copies too, so the old step and its copies stay until the new one outlives the loss of a host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from coordinatord.core.keeping.copy_plan import CopyPlan, are_protected_twice
from coordinatord.core.keeping.resume_plan import ResumePlan
from coordinatord.core.keeping.shards import Coverage
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.protocol.kept_state import KeptParts, KeptStep

Parts = tuple[KeptParts, ...]

DIFFERING_MAX = 64
"""The steps that are remembered because ranks had different states of them. Nodes hold three steps, and overwrite older
ones, so a few would suffice."""


class _StepHolders:
    """The nodes that have parts of one step."""

    __slots__ = ("_all", "_digests", "_protected", "differ", "held", "ranks", "ranks_protected")

    def __init__(self, *, differ: bool) -> None:
        self.held: dict[str, Parts] = {}
        self.ranks = self.ranks_protected = 0
        """How many ranks are held with big state, and protected; one that two nodes hold counts twice."""
        self._all, self._protected = Coverage(), Coverage()
        self._digests: dict[int, int] = {}
        """The digest of each shard that several ranks have."""
        self.differ = differ
        """Whether ranks that should have had the same shard had different ones. Nobody knows which is right, also when
        one of them is gone."""

    @property
    def is_protected_twice(self) -> bool:
        """Whether two nodes protect each shard, as they do where only one host had it and it was copied."""
        holders: dict[int, set[str]] = {}
        for node, parts in self.held.items():
            for part in parts:
                for shard, _ in part.shards_and_ranks() if part.big and part.protected else ():
                    holders.setdefault(shard, set()).add(node)
        return self.is_protected and all(len(nodes) > 1 for nodes in holders.values())

    @property
    def is_protected_by_all(self) -> bool:
        """Whether each shard has a holder, and every holder protects what it has.

        Where all nodes have the same big state, one holder makes the step whole. Another holder that does not protect
        it yet may overwrite it at any moment, and with it the small state of its ranks, which no other node has.
        """
        if self.ranks_protected < self.ranks:  # usual, and cheaper than a look at all parts for each report
            return False
        return self.is_protected and all(part.protected for parts in self.held.values() for part in parts)

    def put(self, node: str, parts: Parts) -> None:
        """Let a node hold these parts and no others."""
        before = self.held.pop(node, ())
        if parts:
            self.held[node] = parts
        gone, come = ([part for part in held if part.big] for held in (before, parts))
        gone_protected, come_protected = ([part for part in held if part.protected] for held in (gone, come))
        self.ranks += _ranks(come) - _ranks(gone)
        self.ranks_protected += _ranks(come_protected) - _ranks(gone_protected)
        self._all.exchange(come, gone)
        self._protected.exchange(come_protected, gone_protected)
        for part in come:
            if part.digest is not None:
                known = [self._digests.setdefault(shard, part.digest) for shard, _ in part.shards_and_ranks()]
                self.differ |= {*known} != {part.digest}

    @property
    def is_whole(self) -> bool:
        """Whether each shard has a holder, and all holders of a shard agree."""
        return self._all.is_whole and not self.differ

    @property
    def is_protected(self) -> bool:
        """Whether each shard has a holder that protects it, and all holders of a shard agree."""
        return self._protected.is_whole and not self.differ


class KeptIndex:
    """The kept state of one run, as its nodes report it."""

    def __init__(self, durable: DurableRun) -> None:
        """Begin with what the records hold: what the members keep is not known before they are heard."""
        self._unheard = {node for node, member in durable.members.items() if member.outcome is None}
        """The members that have not reported what they keep since the coordinator was started. One that was released
        does not report any more, though the records have it until its round is over."""
        self._of_node: dict[str, Parts] = {}
        self._of_step: dict[KeptStep, _StepHolders] = {}
        self._differing: list[KeptStep] = []
        """The last steps of which ranks had different states, though nobody may have them any more."""
        self.whole: KeptStep | None = None
        """The newest step that is whole and protected; it stays until a newer one takes its place."""
        self.candidate: KeptStep | None = None
        """A newer step that is whole and not yet protected everywhere."""
        self._passed: KeptStep | None = None
        """The newest candidate so far. One that was given up may be gone on some node, so it is no candidate again."""
        self.plan: ResumePlan | None = None
        """Which node gets which parts from which other one in the current round. None if it is to be made, or made
        anew: parts of its step have gone, or some that it lacked may have come."""
        self.failed: dict[str, str] = {}
        """Why nodes of the current round could not get what their workers resume from."""
        self.copies: dict[KeptStep, CopyPlan] = {}
        """The planned copies of each protected step; a candidate without a plan waits for one."""
        self.plans_void = False
        """Whether a node has come or gone, or a round has begun, since copies were planned last."""
        self._domains: Mapping[str, str] = {}
        """The failure domain of each node, as of the last plan. It stays while no round runs, since copies stay too."""
        self.no_copies: dict[str, str] = {}
        """Why nodes cannot have the copies that they are to have; no step waits for these."""
        self._first_states: dict[str, tuple[int, ...]] = {}
        """The digests of the states after the first step of the round, by node."""
        self.alike: bool | None = None
        """Whether all ranks of the round had the same state then; None before that is known."""
        self.pinned: KeptStep | None = None
        """The step that is being written to the disk, and stays protected meanwhile."""
        self.is_ending = False
        """Whether the round is being stopped, so that its last step has to find a place."""
        resume = durable.resume
        if resume is not None and resume.disk is None and not durable.stepped and not durable.state.ended:
            self.whole = self._passed = resume.at

    def __bool__(self) -> bool:
        """Return whether any node keeps anything."""
        return bool(self._of_node)

    @property
    def protected(self) -> tuple[KeptStep, ...] | None:
        """The steps that nodes are to protect; None while it is not known which ones they protect now."""
        named = (self.whole, self.candidate, self.pinned)
        steps = tuple(dict.fromkeys(step for step in named if step is not None))
        return None if self._unheard and not steps else steps

    def note(self, node: str, parts: Parts) -> bool:
        """Take in what a node keeps; return whether that has changed, or is the first report."""
        first = node in self._unheard
        self._unheard.discard(node)
        before = self._of_node.pop(node, ())
        if parts:
            self._of_node[node] = parts
        if parts == before:
            return first
        was, now = _by_step(before), _by_step(parts)
        for at in was.keys() | now.keys():
            lost = not _has_all(now.get(at, ()), was.get(at, ()))
            if self.plan is not None and at == self.plan.at and (lost or not self.is_whole(at)):
                self.plan = None
            self._put(at, node, now.get(at, ()))
            plan = self.copies.get(at)
            if plan is not None and (lost or (at not in was and node not in plan.wanted)):
                del self.copies[at]  # it is made anew: another node has the same shard now, or a copy is gone
        return True

    def note_first_states(self, node: str, digests: tuple[int, ...], nodes: int) -> bool:
        """Take in the states that a node's workers had after the first step of the round, which has so many nodes.

        Return whether it is known now if all ranks had the same state.
        """
        if not digests or self.alike is not None:
            return False
        self._first_states[node] = digests
        if len({digest for of_node in self._first_states.values() for digest in of_node}) > 1:
            self.alike = False
        elif len(self._first_states) == nodes:
            self.alike = True
        return self.alike is not None

    def note_no_copies(self, node: str, why: str) -> bool:
        """Take in why a node cannot have its copies, or that it can; return whether that has changed."""
        before = self.no_copies.pop(node, "")
        if why:
            self.no_copies[node] = why
        return why != before

    def drop(self, node: str) -> None:
        """Forget a node that is gone; the copies are planned anew."""
        self.note(node, ())
        self.no_copies.pop(node, None)
        self.void_plans()

    def void_plans(self) -> None:
        """Have the copies of all steps planned anew: other nodes may take them, or have to."""
        self.copies.clear()
        self.plans_void = True

    def _put(self, at: KeptStep, node: str, parts: Parts) -> None:
        if (holders := self._of_step.get(at)) is None:
            holders = self._of_step[at] = _StepHolders(differ=self.differs(at))
        if holders.held.get(node, ()) != parts:
            holders.put(node, parts)
        if holders.differ and not self.differs(at):
            self._differing = [*self._differing[1 - DIFFERING_MAX :], at]
        if not holders.held:
            del self._of_step[at]

    @property
    def all_heard(self) -> bool:
        """Whether every member has reported what it keeps, since the coordinator was started."""
        return not self._unheard

    def is_whole(self, at: KeptStep) -> bool:
        """Whether each shard of a step has a holder, and all holders of a shard agree."""
        holders = self._of_step.get(at)
        return holders is not None and holders.is_whole

    def differs(self, at: KeptStep) -> bool:
        """Whether ranks that should have had the same shard of a step had different ones."""
        return at in self._differing

    def is_protected_by_holders(self, at: KeptStep) -> bool:
        """Whether every node that has big state of a step protects it."""
        holders = self._of_step.get(at)
        return holders is None or holders.ranks_protected == holders.ranks

    @property
    def newest_whole(self) -> KeptStep | None:
        """The newest step that is whole, whether it is protected yet or not."""
        return self._newest(lambda holders: holders.is_whole)

    def steps(self) -> list[KeptStep]:
        """Return the steps of which anything is kept, the newest first."""
        return sorted(self._of_step, reverse=True)

    def holders(self, at: KeptStep) -> dict[str, Parts]:
        """Return the parts of a step, by the node that keeps them."""
        holders = self._of_step.get(at)
        return {} if holders is None else holders.held

    def begin_round(self, at: KeptStep | None) -> None:
        """Protect the step that the round resumes from; it was chosen while no worker lived.

        The older one that was whole before stays until there are copies of this one.
        """
        stays = self.whole is not None and at is not None and self.whole < at and self.is_whole(self.whole)
        self.whole, self.candidate = (self.whole, at) if stays else (at, None)
        self._passed = max((step for step in (self._passed, at) if step is not None), default=None)
        self.plan, self.is_ending = None, False
        self.alike = None
        self._first_states.clear()
        self.failed.clear()
        self.void_plans()
        self._domains = {}  # other nodes may have other topology keys

    def clear(self) -> None:
        """Forget everything: the run is over."""
        self._unheard.clear()
        self._passed = None
        self._of_node.clear()
        self._of_step.clear()
        self._differing.clear()
        self.pinned = None
        self.begin_round(None)

    @property
    def copied(self) -> KeptStep | None:
        """The newest step that outlives the loss of all hosts of any one failure domain; None if none does."""
        return max((at for at in self.protected or () if self._outlives(at)), default=None)

    def _outlives(self, at: KeptStep) -> bool:
        held = self.holders(at)
        shards = next((part.shards for parts in held.values() for part in parts), 0)
        return shards > 0 and are_protected_twice(range(shards), held, self._domains)

    def note_plan(self, at: KeptStep, copies: CopyPlan) -> None:
        """Take in the planned copies of a step, and with them the failure domains."""
        self.copies[at], self._domains = copies, copies.domains

    def copy_of(self, node: str) -> tuple[str, KeptStep] | None:
        """Return the node that has a copy of what this node alone keeps, and of which step; None if none has.

        A step that is no longer protected does not count: its copy may have been overwritten already.
        """
        for at in sorted(self.copies.keys() & {*(self.protected or ())}, reverse=True):
            plan = self.copies[at]
            taker = plan.pairs.get(node, "")
            if node in plan.wanted.get(taker, {}) and plan.has_copies(taker, self.holders(at), only=node):
                return taker, at
        return None

    @property
    def unplanned(self) -> list[KeptStep]:
        """The protected steps whose copies are not planned."""
        return [at for at in self.protected or () if at not in self.copies]

    def advance(self) -> bool:
        """Find the steps to protect anew; return whether they have changed."""
        before = self.protected
        self._judge_candidate()
        if self.whole is None and self._passed is None:
            # After a restart, this is the newest step that nodes protect. One that has copies comes first, as a newer
            # one may not have them yet; and it is known before all nodes are heard.
            self.whole = self._passed = self._newest(lambda holders: holders.is_protected_twice) or (
                None if self._unheard else self._newest(lambda holders: holders.is_protected)
            )
        if self.candidate is None and (self.whole is not None or not self._unheard):
            newest = self.newest_whole
            is_newer = newest is not None and (self._passed is None or newest > self._passed)
            if newest is not None and is_newer and not self._is_last_place(newest):
                self.candidate = self._passed = newest
        self.copies = {at: plan for at, plan in self.copies.items() if at in (self.protected or ())}
        return self.protected != before

    def _is_last_place(self, at: KeptStep) -> bool:
        """Whether a node would have no place for the last step of the round if this one was protected too.

        A state that all nodes have alike is saved when the round breaks, and that may happen at any time.
        """
        alike = any(part.shards == 1 for parts in self.holders(at).values() for part in parts)
        return (alike or self.is_ending) and self.pinned is not None and self.pinned != self.whole

    def _judge_candidate(self) -> None:
        """Let the candidate become the whole step once it is protected everywhere; give it up if it is not whole."""
        if self.candidate is None:
            return
        holders, plan = self._of_step.get(self.candidate), self.copies.get(self.candidate)
        if holders is not None and holders.is_protected_by_all:
            if plan is not None and plan.is_made(holders.held, self.no_copies):
                self.whole, self.candidate = self.candidate, None
        elif holders is None or not holders.is_whole:
            self.candidate = None

    def _newest(self, holds: Callable[[_StepHolders], bool]) -> KeptStep | None:
        return max((at for at, holders in self._of_step.items() if holds(holders)), default=None)


def _ranks(parts: Sequence[KeptParts]) -> int:
    return sum(part.ranks for part in parts)


def _by_step(parts: Parts) -> dict[KeptStep, Parts]:
    found: dict[KeptStep, Parts] = {}
    for part in parts:
        found[part.at] = (*found.get(part.at, ()), part)
    return found


def _has_all(now: Parts, before: Parts) -> bool:
    """Whether a node still has all parts of a step that it had; whether it protects them does not matter.

    A copy that has come may have made a larger group of them.
    """
    return all(any(_is_within(part, group) for group in now) for part in before)


def _is_within(part: KeptParts, group: KeptParts) -> bool:
    offset = part.first_rank - group.first_rank
    if not 0 <= offset <= group.ranks - part.ranks:
        return False
    shard = (group.first_shard + offset) % group.shards
    alike = replace(group, first_rank=part.first_rank, ranks=part.ranks, first_shard=shard, protected=part.protected)
    return alike == part
