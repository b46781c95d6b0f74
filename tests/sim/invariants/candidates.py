"""An invariant of kept state: a step that all nodes have is made the whole one, or given up, within some seconds.

Until then the older step keeps its place in memory, so the steps that a broken round has to do again become more.
"""

from __future__ import annotations

from coordinatord.core.events import Event
from coordinatord.core.state.durable import State
from coordinatord.core.state.run import Run
from tests.sim.invariants.laws import Facts, Laws

SETTLED_WITHIN_S = 10.0
"""The time for it: some tries for each copy, and a heartbeat for each answer and report. Most take less than 2 s."""

SILENT_S = 2.5
"""A node that has been silent for longer may be cut off, or asleep."""


class CandidateLaws(Laws):
    """Watches how long steps wait to become whole in one world."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._waits: dict[str, tuple[tuple[object, ...], float]] = {}
        """The candidate of each run with its circumstances, and since when both are as they are."""
        self.longest_s = 0.0
        """The longest time that a candidate has waited."""

    def note_event(self, event: Event) -> None:
        """Check each run at each event: a step that waits for ever leads to no record."""
        machine, now = self.world.daemon.machine, self.world.daemon.clock.read()
        for run in machine.jobs.values():
            if run.kept.candidate is None or machine.store_error is not None or not self._is_calm(run, now):
                self._waits.pop(run.id, None)
                continue
            members = ((member.node, member.incarnation, member.session) for member in run.members.values())
            circumstances = (self.world.daemon.life, run.kept.candidate, run.durable.round, *sorted(members, key=str))
            known, since = self._waits.get(run.id, (None, now))
            if known != circumstances:
                self._waits[run.id] = circumstances, now
                continue
            self.longest_s = max(self.longest_s, now - since)
            text = "%s has been a candidate for %.1f s, and all nodes report"
            self.check(now - since < SETTLED_WITHIN_S, text, run.kept.candidate, now - since)

    def _is_calm(self, run: Run, now: float) -> bool:
        """Whether a round goes on, and all nodes are heard as often as they should be."""
        if run.durable.state is not State.RUNNING or self.world.scenario.network.harsh:
            return False
        members = run.members.values()
        return all(member.session is not None and now - member.heard_at < SILENT_S for member in members)
