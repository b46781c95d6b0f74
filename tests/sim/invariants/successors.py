"""Invariants of nodes that join when a run has ended: which receive its end, and which begin another run.

They are checked by when each nodeclient really began, and when the end was decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinatord.core.rounds.values.records import Record, RunEnded, RunOpened
from coordinatord.protocol.messages import Desired, Result
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.network import Session

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host

ROUGHLY_S = 1.0
"""The tolerance, beside the delay of the message with the age, and the difference of the clocks' rates."""


class SuccessorLaws(Laws):
    """Checks which nodes begin a job anew."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._over: dict[str, tuple[RunEnded, float, int]] = {}
        """The end of each run, when it was decided, and in which life of the coordinator."""

    def decided(self, records: Sequence[Record]) -> None:
        """Check that no process opens another run if it was running when the job ended."""
        for record in records:
            if isinstance(record, RunEnded):
                self._over[record.run] = record, self.world.queue.now, self.world.daemon.life
            elif isinstance(record, RunOpened):
                self._judge_successor(record)

    def _judge_successor(self, record: RunOpened) -> None:
        old = self.facts.replica.jobs.get(record.job)
        over = None if old is None else self._over.get(old.id)
        if old is None or over is None or over[2] != self.world.daemon.life or old.spec != record.spec:
            return
        ended, at, _ = over
        if ended.outcome.result in {Result.SUCCEEDED, Result.STOPPED}:
            openers = [host for host in self._alive if host.node == record.opener]
            early = bool(openers) and all(host.booted_at < at - self._vague_s(host) for host in openers)
            self.check(not early, "%s, which was running by then, begins a job anew: %s", record.opener, ended.reason)

    def _vague_s(self, host: Host) -> float:
        """Return the coordinator's error about when a nodeclient began: an age is as of its message."""
        now = self.world.queue.now
        return ROUGHLY_S + now - host.joined_at + 2 * self.world.scenario.skew * (now - host.booted_at)

    @property
    def _alive(self) -> list[Host]:
        return [host for host in self.world.hosts.values() if host.agent is not None]

    def came_late(self, session: Session, message: Desired) -> bool:
        """Whether a node may receive the end of a run that it took no part in."""
        ended = self.facts.replica.outcomes.get(message.run)
        received = message.outcome
        if (
            ended is None
            or received is None
            or (received.result, received.exit_code) != (ended.result, ended.exit_code)
        ):
            return False
        over = self._over.get(message.run)
        exact = over is not None and over[2] == self.world.daemon.life
        return not exact or (over is not None and session.host.booted_at <= over[1] + self._vague_s(session.host))
