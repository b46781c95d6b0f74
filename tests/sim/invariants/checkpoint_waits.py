"""Invariants of nodes that wait for a checkpoint: until there is one that is newer than they are, and no longer.

If the script writes no checkpoints, a step that is saved at an interval counts as one once it is whole. More nodes may
be about to come then, but a round that went on for them would lose the steps since.
"""

from __future__ import annotations

import math

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Connected, Event, Reported
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.kept_state import KeptParts
from coordinatord.protocol.messages import Observed, ScaleUp
from tests.sim.invariants.kept_steps import is_whole
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
        self._held: dict[Round, dict[str, tuple[KeptParts, ...]]] = {}
        """The parts that each node has of steps of its round, if any node saves at an interval."""
        self._saved: dict[Round, tuple[int, float]] = {}
        """The newest step that was whole by these, and since when."""
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
        if kept is None:
            return
        if kept.interval_steps is not None or key in self._held:
            self._note_parts(key, node, kept.parts)
        if not kept.writes_checkpoints:
            return
        written = self._written.setdefault(key, {})
        written[node] = -1 if kept.checkpointed is None else kept.checkpointed
        common = min(written.values())
        if common > self._common.get(key, (-1, -math.inf))[0]:
            self._common[key] = common, now

    def _note_parts(self, key: Round, node: str, parts: tuple[KeptParts, ...]) -> None:
        held = self._held.setdefault(key, {})
        held[node] = tuple(part for part in parts if part.big and part.at.round == key[1])
        steps = {part.at.step for part in held[node]}
        for step in steps:
            whole = is_whole([part for of_node in held.values() for part in of_node if part.at.step == step])
            if whole and step > self._saved.get(key, (-1, -math.inf))[0]:
                self._saved[key] = step, self.world.queue.now

    def _newest(self, key: Round) -> tuple[int, float] | None:
        """Return the newest checkpoint of a round, and when it was there; None if nodes do not wait for any.

        Where workers save neither at an interval nor when they are asked, nodes wait until the round ends.
        """
        if key in self._written:
            return self._common.get(key, (-1, -math.inf))
        if key in self._held or self.world.scenario.keeps is None:
            return self._saved.get(key, (-1, -math.inf))
        return None

    def too_soon(self, run: Run, came: float) -> str | None:
        """Return why a round may not be stopped for nodes of which the first came then; None if they await nothing.

        The text is empty if it may be stopped.
        """
        newest = self._newest((run.id, run.durable.round))
        if newest is None:
            return None
        step, at = newest
        self.ended += at >= came
        return "" if at >= came else f"the checkpoint of step {step} was there before they came"

    def settled(self, machine: Coordinator) -> None:
        """Check that no node waits any longer when the checkpoint is there."""
        for run in machine.jobs.values():
            ready = [*run.roll.in_state(MemberState.READY)]
            waiting = {(run.id, each.node, each.incarnation) for each in ready}
            # A node that was in a round, and is back from it, waits anew.
            self._ready_at = {key: at for key, at in self._ready_at.items() if key[0] != run.id or key in waiting}
            waits = run.spec.scale_up is ScaleUp.AT_CHECKPOINT and run.durable.state is State.RUNNING
            if not waits or run.roll.round_size >= run.spec.nodes_max or run.durable.succeeded:
                continue
            now = self.world.queue.now
            since = [self._ready_at.setdefault((run.id, each.node, each.incarnation), now) for each in ready]
            life, key = self.world.daemon.life, (run.id, run.durable.round)
            step, at = self._newest(key) or (-1, math.inf)
            # What a node first says to a coordinator that was started again may be older than the nodes that wait.
            heard = [self._heard_at.get((life, key, node), math.inf) for node in run.durable.order]
            known = machine.store_error is None and step >= 0 and at > max(heard)
            late = known and min(since, default=math.inf) < at < now - TAKEN_IN_WITHIN_S
            self.check(not late, "nodes wait %.1f s after the checkpoint was written", now - at)
