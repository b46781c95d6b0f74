"""Kept steps as no code of the coordinator counts them: what parts of them nodes have, and which are useless."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coordinatord.core.journal import Decided
from coordinatord.core.rounds.values.records import Record, ReplicasDiverged, RoundFormed, RoundStopped
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.protocol.kept_state import KeptParts, KeptStep
from tests.sim.workers import Round


def ranks_of(parts: Iterable[KeptParts]) -> set[int]:
    """Return the ranks of parts with big state, counted one by one."""
    return {part.first_rank + number for part in parts if part.big for number in range(part.ranks)}


def shards_of(parts: Iterable[KeptParts]) -> set[int]:
    """Return the shards of parts with big state, counted one by one."""
    return {(part.first_shard + number) % part.shards for part in parts if part.big for number in range(part.ranks)}


def differing(parts: Iterable[KeptParts]) -> set[KeptStep]:
    """Return the steps of which two parts with the same shard have different digests."""
    digests: dict[tuple[KeptStep, int], set[int | None]] = {}
    for part in parts:
        for number in range(part.ranks) if part.big and part.digest is not None else ():
            digests.setdefault((part.at, (part.first_shard + number) % part.shards), set()).add(part.digest)
    return {at for (at, _), different in digests.items() if len(different) > 1}


def is_whole(parts: list[KeptParts]) -> bool:
    """Whether parts have all shards, counted one by one."""
    shards = {part.shards for part in parts}
    return len(shards) == 1 and len(shards_of(parts)) == shards.pop()


def came_late(held: Mapping[str, Sequence[KeptParts]], node: str) -> bool:
    """Whether a node reported a step that others protect, and which all have alike, when it was the whole one already.

    It may overwrite the step until it hears of that.
    """
    protects = {name: all(part.protected for part in parts) for name, parts in held.items()}
    return not protects[node] and any(protects.values()) and all(part.shards == 1 for part in held[node])


class UselessSteps:
    """The steps of each run from which a round could not resume, and those of which ranks had different states.

    A step that could not be read from the disk does not count: a node that cannot read it reports it no more.
    """

    def __init__(self) -> None:
        self._points: dict[Round, ResumePoint | None] = {}
        """What each round resumes from."""
        self._found: dict[str, list[tuple[KeptStep, int, bool]]] = {}
        """Steps, the rounds since which they are known to be useless, and whether on the disk too, by run."""
        self._doubted: set[tuple[str, KeptStep]] = set()
        """The first steps that may be wrong, where rounds go on from there."""
        self.differing: dict[str, set[KeptStep]] = {}
        """The steps of which ranks had different states, by run."""

    def note(self, record: Record) -> None:
        """Note what a round resumes from, or that it cannot."""
        if isinstance(record, RoundFormed):
            self._points[record.run, record.round] = record.resume
            for each in record.spoiled:
                self._add(record.run, each.at, each.round, on_disk=each.on_disk)
        elif isinstance(record, ReplicasDiverged) and record.back_to is not None:
            at = KeptStep(record.round, 0 if record.agreed is None else record.agreed + 1)
            self._add(record.run, at, record.round + 1, on_disk=True)
        elif isinstance(record, ReplicasDiverged):
            self._doubted.add((record.run, record.since))
        elif isinstance(record, RoundStopped) and record.condition == "unrestorable":
            point = self._points.get((record.run, record.round))
            if point is not None and point.disk is None:
                self._add(record.run, point.at, record.round, on_disk=False)

    def _add(self, run: str, at: KeptStep, number: int, *, on_disk: bool) -> None:
        self._found.setdefault(run, []).append((at, number, on_disk))

    def note_parts(self, run: str, parts: Iterable[KeptParts]) -> None:
        """Note the parts that the nodes of a run have reported."""
        self.differing.setdefault(run, set()).update(differing(parts))

    def restored(self, past: Iterable[Decided]) -> None:
        """Note what a coordinator that starts can know: a crash forgets a decision that was not recorded."""
        self._found.clear()
        self.differing.clear()  # nodes report them again
        for _, record in past:
            self.note(record)

    def does_resume(self, key: Round) -> bool:
        """Whether a round resumes from anything."""
        return self._points.get(key) is not None

    def knows(self, run: str, at: KeptStep) -> bool:
        """Whether it is known that ranks differ in this step, or that a round could not resume from it."""
        is_doubted = at in self.differing.get(run, ()) or (run, at) in self._doubted
        return is_doubted or any(at == first for first, *_ in self._found.get(run, ()))

    def excludes(self, run: str, at: KeptStep, *, on_disk: bool = False) -> bool:
        """Whether ranks differ, or a step is a useless one or a later one, and was done before that was known."""
        if at in self.differing.get(run, ()):
            return True
        found = self._found.get(run, ())
        return any(first <= at and at.round < number and (wrong or not on_disk) for first, number, wrong in found)
