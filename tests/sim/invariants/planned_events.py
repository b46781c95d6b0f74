"""The invariant of planned events: where nothing fails, no round begins from an older step than was safe before."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.values.records import NodeLost, Record, RoundFormed, RoundStopped
from coordinatord.protocol.kept_state import KeptStep
from tests.sim.invariants.laws import Facts, Laws


class PlannedEventLaws(Laws):
    """Watches the steps that rounds resume from, in a world of planned events.

    A transfer may arrive damaged nonetheless, and a lost connection may outlast a lease: the law then begins anew. An
    older step, which nodes had given up by then, is never safe again: a round may still begin from it by old reports.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._safe: dict[str, KeptStep] = {}
        """The newest step that the nodes of each run have protected, or have resumed from."""
        self._given_up_before: dict[str, KeptStep] = {}
        """The newest step that they protected when something failed: they have given up older ones."""
        self.untrained = 0
        """How many rounds that had resumed were stopped before their first step was known."""

    def decided(self, records: Sequence[Record]) -> None:
        """Check the choice for a round."""
        for run, record in self.facts.of_runs(records) if self.world.scenario.only_planned else ():
            safe = self._safe.get(run.id)
            match record:
                case RoundFormed():
                    at = None if record.resume is None else record.resume.at
                    lost = safe is not None and (at is None or at < safe)
                    self.check(not lost, "round %d begins from %s, and %s was safe", record.round, at, safe)
                    self._note(run.id, at)
                case RoundStopped(planned=True):
                    self.untrained += run.durable.resume is not None and not run.durable.stepped
                    self._note(run.id, kept_of(run).protection.whole)
                case RoundStopped() | NodeLost():
                    self._safe.pop(run.id, None)
                    if (whole := kept_of(run).protection.whole) is not None:
                        self._given_up_before[run.id] = max(whole, self._given_up_before.get(run.id, whole))

    def _note(self, run: str, at: KeptStep | None) -> None:
        if at is not None and at >= self._given_up_before.get(run, at):
            self._safe[run] = max(at, self._safe.get(run, at))
