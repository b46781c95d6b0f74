"""An index of the parts that nodes report, by step: which steps are whole, and which nodes protect them.

Each heartbeat of each node reports its parts, up to 10,000 nodes with three steps each. So the index does work only for
parts that have changed, and keeps counts instead of searching.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.core.keeping.bad_steps import has_spoiled
from coordinatord.core.keeping.shards import Coverage, are_in_two_domains, holders_by_shard
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.protocol.kept_state import KeptParts, KeptStep

Parts = tuple[KeptParts, ...]

DIFFERING_MAX = 64
"""How many steps are remembered in which ranks had different states. A few would suffice, since nodes hold three steps;
the limit bounds the memory of a run in which all steps differ."""


class StepHolders:
    """The nodes that have parts of one step, and these parts."""

    __slots__ = ("_all", "_digests", "_protected", "differ", "parts", "ranks", "ranks_protected")

    def __init__(self, *, differ: bool) -> None:
        self.parts: dict[str, Parts] = {}
        """The parts that each node has."""
        self.ranks = self.ranks_protected = 0
        """The numbers of ranks whose big state is held, and is protected; a rank that two nodes hold counts twice."""
        self._all, self._protected = Coverage(), Coverage()
        self._digests: dict[int, int] = {}
        """The digest of each shard that several ranks have."""
        self.differ = differ
        """Whether ranks that should have had the same shard had different ones. It stays true when one of these is
        gone, because nobody knows which was right."""

    @property
    def is_protected_twice(self) -> bool:
        """Whether two nodes protect each shard. Where a step is copied, these are its holders and their buddies."""
        domains = {node: node for node in self.parts}  # the real domains are not known here
        return self.is_protected and are_in_two_domains(holders_by_shard(self.parts).keys(), self.parts, domains)

    @property
    def is_protected_by_all(self) -> bool:
        """Whether each shard has a holder, and every holder protects its parts.

        Where all nodes have the same big state, one holder makes the step whole. The others have to protect it all the
        same: the small state of a rank is only on its own node, which may overwrite it until then.
        """
        if self.ranks_protected < self.ranks:  # decides most calls, and costs less than going through all parts
            return False
        return self.is_protected and all(part.protected for parts in self.parts.values() for part in parts)

    def put(self, node: str, parts: Parts) -> None:
        """Replace the parts of a node, and update what follows from all parts."""
        before = self.parts.pop(node, ())
        if parts:
            self.parts[node] = parts
        old, new = ([part for part in held if part.big] for held in (before, parts))
        old_protected, new_protected = ([part for part in held if part.protected] for held in (old, new))
        self.ranks += _ranks(new) - _ranks(old)
        self.ranks_protected += _ranks(new_protected) - _ranks(old_protected)
        self._all.replace(old, new)
        self._protected.replace(old_protected, new_protected)
        for part in new:
            if part.digest is not None:
                known = [self._digests.setdefault(shard, part.digest) for shard, _ in part.shards_and_ranks()]
                self.differ |= {*known} != {part.digest}

    @property
    def is_whole(self) -> bool:
        """Whether each shard has a holder, and all holders of a shard have the same state of it."""
        return self._all.is_whole and not self.differ

    @property
    def is_protected(self) -> bool:
        """Whether each shard has a holder that protects it, and all holders of a shard have the same state of it."""
        return self._protected.is_whole and not self.differ


_NO_HOLDERS = StepHolders(differ=False)
"""The holders of a step of which no node has a part; shared by all such steps, so nobody may change it."""


class PartsChange(Struct, frozen=True):
    """A change of the parts that a node holds of one step."""

    at: KeptStep
    lost: bool
    """Whether a part is gone."""
    is_new: bool
    """Whether the node held nothing of the step before."""
    was_whole: bool
    """Whether the step was whole before."""


class KeptIndex:
    """The parts that the nodes of one run hold, as they report them."""

    def __init__(self, durable: DurableRun) -> None:
        """Begin with the recorded members: their parts are not known before they are heard."""
        self._durable = durable
        self._unheard = {node for node, member in durable.members.items() if member.outcome is None}
        """The members that have not reported their parts since the coordinator was started, without released ones."""
        self._of_node: dict[str, Parts] = {}
        self._of_step: dict[KeptStep, StepHolders] = {}
        self._differing: list[KeptStep] = []
        """The last steps of which ranks had different states, even if no node has them any more."""

    def __bool__(self) -> bool:
        """Return whether any node keeps anything."""
        return bool(self._of_node)

    def record(self, node: str, parts: Parts) -> list[PartsChange] | None:
        """Record the parts that a node reports; return the changes, or None if it reported the same before.

        It is never None for a node's first report after a restart of the coordinator, even one without parts: that
        report may be the one that makes `all_heard` true.
        """
        is_first = node in self._unheard
        self._unheard.discard(node)
        before = self._of_node.pop(node, ())
        if parts:
            self._of_node[node] = parts
        if parts == before:
            return [] if is_first else None
        old, new, changes = _by_step(before), _by_step(parts), []
        for at in old.keys() | new.keys():
            lost = not _has_all(new.get(at, ()), old.get(at, ()))
            changes.append(PartsChange(at, lost, at not in old, self.is_whole(at)))
            self._put(at, node, new.get(at, ()))
        return changes

    def _put(self, at: KeptStep, node: str, parts: Parts) -> None:
        if (holders := self._of_step.get(at)) is None:
            holders = self._of_step[at] = StepHolders(differ=self.differs(at))
        if holders.parts.get(node, ()) != parts:
            holders.put(node, parts)
        if holders.differ and not self.differs(at):
            self._differing = [*self._differing[1 - DIFFERING_MAX :], at]
        if not holders.parts:
            del self._of_step[at]

    def record_release(self, node: str) -> None:
        """Record that a node is released: it reports no more."""
        self._unheard.discard(node)

    @property
    def all_heard(self) -> bool:
        """Whether every member has reported its parts since the coordinator was started."""
        return not self._unheard

    def step_holders(self, at: KeptStep) -> StepHolders:
        """Return the nodes that have parts of a step."""
        return self._of_step.get(at, _NO_HOLDERS)

    def holders(self, at: KeptStep) -> dict[str, Parts]:
        """Return the parts of a step, by the node that has them."""
        return self.step_holders(at).parts

    def is_whole(self, at: KeptStep) -> bool:
        """Whether each shard of a step has a holder, and all holders of a shard have the same state of it."""
        return self.step_holders(at).is_whole

    def differs(self, at: KeptStep) -> bool:
        """Whether ranks that should have had the same shard of a step had different ones."""
        return at in self._differing

    def all_protect_big_state(self, at: KeptStep) -> bool:
        """Whether every node that has big state of a step protects that."""
        holders = self.step_holders(at)
        return holders.ranks_protected == holders.ranks

    @property
    def newest_whole(self) -> KeptStep | None:
        """The newest step that is whole, whether it is protected yet or not, and is not known to be spoiled."""
        return next(iter(self.whole_steps()), None)

    def whole_steps(self) -> list[KeptStep]:
        """Return the whole steps that are not known to be spoiled, the newest first."""
        whole = (at for at, holders in self._of_step.items() if holders.is_whole)
        # A step that nodes could not get from memory may still be written to the disk, so it is judged as one there.
        return sorted((at for at in whole if not has_spoiled(self._durable, at, self._durable.id)), reverse=True)

    def steps(self) -> list[KeptStep]:
        """Return the steps of which any node has a part, the newest first."""
        return sorted(self._of_step, reverse=True)

    def clear(self) -> None:
        """Forget all parts: the run is over."""
        self._unheard.clear()
        self._of_node.clear()
        self._of_step.clear()
        self._differing.clear()


def _ranks(parts: Sequence[KeptParts]) -> int:
    return sum(part.ranks for part in parts)


def _by_step(parts: Parts) -> dict[KeptStep, Parts]:
    found: dict[KeptStep, Parts] = {}
    for part in parts:
        found[part.at] = (*found.get(part.at, ()), part)
    return found


def _has_all(now: Parts, before: Parts) -> bool:
    """Whether a node still has all parts of a step that it had, perhaps in a larger group, protected or not."""
    return all(any(_is_within(part, group) for group in now) for part in before)


def _is_within(part: KeptParts, group: KeptParts) -> bool:
    """Whether `group` has all ranks of `part`, with the same shards and kinds of state."""
    offset = part.first_rank - group.first_rank
    if not 0 <= offset <= group.ranks - part.ranks:
        return False
    shard = (group.first_shard + offset) % group.shards
    alike = replace(group, first_rank=part.first_rank, ranks=part.ranks, first_shard=shard, protected=part.protected)
    return alike == part
