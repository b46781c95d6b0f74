"""Invariants of what is said of workers that do not end after others have, by what the workers really did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinatord.core.rounds.events import Event
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import ExitOverdue, Record
from nodeclient.core import events
from tests.sim.invariants.hangs import CLOCKS
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.workers import Round

if TYPE_CHECKING:  # the world has the laws
    from tests.sim.host import Host

PATIENCE_S = 10.0
"""How long after an exit the other workers may live before it is said, if no step may take longer."""

TOLD_WITHIN_S = 8.0
"""The longest time from the end of the patience to the record: two heartbeats, and the commits in between."""


class ExitLaws(Laws):
    """Watches the exits of the workers of one world."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._exits = defaultdict[Round, list[float]](list)
        """When workers of each round exited with 0."""
        self._told: set[Round] = set()
        """The rounds of which it is on record that some workers have not ended."""

    def happens(self, host: Host, event: events.Event) -> None:
        """Note an exit."""
        if isinstance(event, events.WorkerExited) and event.exit_code == 0:
            self._exits[host.workers.round].append(self.world.queue.now)

    def decided(self, records: Sequence[Record]) -> None:
        """Check that it is said only where it is true, and not at once."""
        for record in records:
            if not isinstance(record, ExitOverdue):
                continue
            key, now = (record.run, record.round), self.world.queue.now
            exits = self._exits[key]
            self.check(exits, "round %d: workers are overdue, and none has ended", record.round)
            # A node tells of an exit with its next heartbeat.
            least = _patience_s(self.world.daemon.machine.jobs["job"])
            self.check(now - exits[0] >= least * CLOCKS, "round %d: exits are overdue at once", record.round)
            self.check(key not in self._told, "round %d: it is said again", record.round)

    def recorded(self, at: float, record: Record) -> None:
        """Note that it is said."""
        if isinstance(record, ExitOverdue):
            self._told.add((record.run, record.round))

    def set_back(self, records: Sequence[Record], now: float) -> None:
        """Forget what the store has forgotten."""
        self._told = {(record.run, record.round) for record in records if isinstance(record, ExitOverdue)}

    def note_event(self, event: Event) -> None:
        """Check that it is said in time, where nothing else goes wrong."""
        run = self.world.daemon.machine.jobs.get("job")
        if run is None or run.durable.state is not State.RUNNING:
            return
        key, now = (run.id, run.durable.round), self.world.queue.now
        training = self.world.trainings.get(key)
        if training is None or training.broken or key in self._told or not self._exits[key]:
            return
        hosts = training.hosts.values()
        since = max(self._exits[key][-1], training.done_at, training.standstills.section_end)
        is_calm = all(host.well and host.troubled_until < since for host in hosts) and self.facts.upset_at < since
        if any(host.workers.alive for host in hosts) and is_calm and not self.world.scenario.network.harsh:
            most = _patience_s(run) / CLOCKS + TOLD_WITHIN_S
            self.check(now - since < most, "round %d: nobody says which worker does not end", key[1])


def _patience_s(run: Run) -> float:
    """Return how long after an exit the other workers may live, where each may still do a step as long as the others.

    How long that takes is what `training_progress` has measured, which has laws of its own.
    """
    return PATIENCE_S if run.progress.stepped_at is None else max(PATIENCE_S, run.progress.measured_patience_s)
