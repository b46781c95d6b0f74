"""Invariants of nodes that wait for a checkpoint: until all nodes have written one since they came, and no longer."""

from __future__ import annotations

import math

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Connected, Event, Reported
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.messages import Observed, ScaleUp
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.workers import Round

TAKEN_IN_WITHIN_S = 5.0
"""The longest time from a checkpoint to the end of its round: the store may not answer for a while."""


class CheckpointWaitLaws(Laws):
    """Follows the checkpoints that nodes have reported to any coordinator."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._written: dict[Round, dict[str, int]] = {}
        """The step of the newest checkpoint of each node; -1 if it will write some, and has written none."""
        self._common: dict[Round, tuple[int, float]] = {}
        """The step of the newest checkpoint of all of them, and when it was reported."""
        self._heard_at: dict[tuple[int, Round, str], float] = {}
        """When each life of the coordinator first heard each node of a round; reports of other rounds do not count."""
        self._ready_at: dict[tuple[str, str, int], float] = {}
        """When each node began to wait."""
        self.ended = 0
        """How many rounds ended when a checkpoint was written for which nodes waited."""

    def note_event(self, event: Event) -> None:
        """Note a report that the coordinator is about to handle."""
        if isinstance(event, Connected):
            self._note_report(event.join.node, event.join.observed)
        elif isinstance(event, Reported):
            _, member = self.world.daemon.machine._sessions.get(event.session, (None, None))
            if member is not None:
                self._note_report(member.node, event.observed)

    def _note_report(self, node: str, observed: Observed) -> None:
        kept, key, now = observed.kept, (observed.run, observed.round), self.world.queue.now
        self._heard_at.setdefault((self.world.daemon.life, key, node), now)
        if kept is None or not kept.writes_checkpoints:
            return
        written = self._written.setdefault(key, {})
        written[node] = -1 if kept.checkpointed is None else kept.checkpointed
        common = min(written.values())
        if common > self._common.get(key, (-1, -math.inf))[0]:
            self._common[key] = common, now

    def too_soon(self, run: Run, came: float) -> str | None:
        """Return why a round may not be stopped for nodes of which the first came then; None if its script writes none.

        The text is empty if it may be stopped.
        """
        key = (run.id, run.durable.round)
        if key not in self._written:
            return None
        step, at = self._common.get(key, (-1, -math.inf))
        self.ended += at >= came
        return "" if at >= came else f"the checkpoint of step {step} was there before they came"

    def settled(self, machine: Coordinator) -> None:
        """Check that no node waits any longer when the checkpoint is there."""
        for run in machine.jobs.values():
            waits = run.spec.scale_up is ScaleUp.AT_CHECKPOINT and run.durable.state is State.RUNNING
            if not waits or run.roll.round_size >= run.spec.nodes_max or run.durable.succeeded:
                continue
            now, ready = self.world.queue.now, run.roll.in_state(MemberState.READY)
            since = [self._ready_at.setdefault((run.id, each.node, each.incarnation), now) for each in ready]
            life, key = self.world.daemon.life, (run.id, run.durable.round)
            _, at = self._common.get(key, (-1, math.inf))
            # What a node first says to a coordinator that was started again may be older than the nodes that wait.
            heard = [self._heard_at.get((life, key, node), math.inf) for node in run.durable.order]
            known = machine.store_error is None and at > max(heard)
            late = known and min(since, default=math.inf) < at < now - TAKEN_IN_WITHIN_S
            self.check(not late, "nodes wait %.1f s after the checkpoint was written", now - at)
