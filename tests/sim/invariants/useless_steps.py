"""Which kept steps have proved useless to the rounds that were to resume from them, as the coordinator knows it."""

from __future__ import annotations

from collections.abc import Iterable

from coordinatord.core.journal import Decided
from coordinatord.core.rounds.values.records import Record, RoundFormed, RoundStopped
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.protocol.kept_state import KeptParts, KeptStep
from tests.sim.invariants.part_sets import differing
from tests.sim.workers import Round


class UselessSteps:
    """The last step of each run from which a round could not resume, and those of which ranks had different states.

    A step on the disk does not count: a node that cannot read it reports it no more.
    """

    def __init__(self) -> None:
        self._points: dict[Round, ResumePoint | None] = {}
        """What each round resumes from."""
        self._last: dict[str, tuple[KeptStep, int]] = {}
        """The step, and the round that could not resume from it, by run."""
        self.differing: dict[str, set[KeptStep]] = {}
        """The steps of which ranks had different states, by run."""

    def note(self, record: Record) -> None:
        """Note what a round resumes from, or that it cannot."""
        if isinstance(record, RoundFormed):
            self._points[record.run, record.round] = record.resume
        elif isinstance(record, RoundStopped) and record.condition == "unrestorable":
            point = self._points.get((record.run, record.round))
            if point is not None and point.disk is None:
                self._last[record.run] = (point.at, record.round)

    def note_parts(self, run: str, parts: Iterable[KeptParts]) -> None:
        """Note the parts that the nodes of a run have reported."""
        self.differing.setdefault(run, set()).update(differing(parts))

    def restored(self, past: Iterable[Decided]) -> None:
        """Note what a coordinator that starts can know: a crash forgets a decision that was not recorded."""
        self._last.clear()
        self.differing.clear()  # nodes report them again
        for _, record in past:
            self.note(record)

    def does_resume(self, key: Round) -> bool:
        """Whether a round resumes from anything."""
        return self._points.get(key) is not None

    def last(self, run: str) -> KeptStep | None:
        """Return the last useless step of a run."""
        return self._last[run][0] if run in self._last else None

    def excludes(self, run: str, at: KeptStep) -> bool:
        """Whether ranks differ, or a step is the useless one or a later one, and was done before that was known."""
        useless = self._last.get(run)
        if at in self.differing.get(run, ()):
            return True
        return useless is not None and at.round < useless[1] and at >= useless[0]
