"""An invariant of kept state: a step that all nodes have is made the whole one, or given up, within some seconds.

Until then the older step keeps its place in memory, so the steps that a broken round has to do again become more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinatord.core.machine import Coordinator
from coordinatord.core.state.durable import State
from coordinatord.core.state.run import Run

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.world import World

SETTLED_WITHIN_S = 10.0
"""The time for it: some tries for each copy, and a heartbeat for each answer and report. Most take less than 2 s."""

SILENT_S = 2.5
"""A node that has been silent for longer may be cut off, or asleep."""


class CandidatesInTime:
    """Watches how long steps wait to become whole in one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waits: dict[str, tuple[tuple[object, ...], float]] = {}
        """The candidate of each run with its circumstances, and since when both are as they are."""
        self.longest_s = 0.0
        """The longest time that a candidate has waited."""

    def watch(self, machine: Coordinator) -> None:
        """Check each run at each event: a step that waits for ever leads to no record."""
        now = self._world.daemon.clock.read()
        for run in machine.jobs.values():
            if run.kept.candidate is None or machine.store_error is not None or not self._is_calm(run, now):
                self._waits.pop(run.id, None)
                continue
            members = ((member.node, member.incarnation, member.session) for member in run.members.values())
            circumstances = (self._world.daemon.life, run.kept.candidate, run.durable.round, *sorted(members, key=str))
            known, since = self._waits.get(run.id, (None, now))
            if known != circumstances:
                self._waits[run.id] = circumstances, now
                continue
            self.longest_s = max(self.longest_s, now - since)
            text = "%s has been a candidate for %.1f s, and all nodes report"
            self._world.invariants.check(now - since < SETTLED_WITHIN_S, text, run.kept.candidate, now - since)

    def _is_calm(self, run: Run, now: float) -> bool:
        """Whether a round goes on, and all nodes are heard as often as they should be."""
        if run.durable.state is not State.RUNNING or self._world.scenario.network.harsh:
            return False
        members = run.members.values()
        return all(member.session is not None and now - member.heard_at < SILENT_S for member in members)
