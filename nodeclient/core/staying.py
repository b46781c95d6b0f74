"""Which workers of a node can go into another round as the same processes, and which wait for it.

A worker that is able to is asked to leave its round before it is asked to end. Once it is out of the round it is
*held*: it takes part in nothing, and has no part in what the node reports. The next round takes it, unless that begins
from nothing: what a process has learned cannot be unlearned. A worker is held for a while only, since it keeps memory
and devices.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.text import clip
from coordinatord.protocol.worker_starts import Begun
from nodeclient.core.effects import LeaveRound, Terminate
from nodeclient.core.events import WorkerRefuses
from nodeclient.core.table import Stimulus
from nodeclient.core.worker_group import WorkerGroup

HOLD_S = 60.0
"""How long a worker waits for another round. One is formed within seconds, or waits for nodes that may never come."""


class Staying:
    """The workers of one node by their local ranks. Times are in the agent's clock."""

    def __init__(self) -> None:
        """Begin without any."""
        self._able: set[int] = set()
        self.held: set[int] = set()
        """The workers that are out of their round, and wait for the next one."""
        self.hold_until: float | None = None
        self.leave_by: float | None = None
        """When workers are ended that were asked to leave and are not out of the round."""
        self._asked = False
        self._failed: set[int] = set()
        """The workers that leave their round because a collective has failed in them."""
        self._refused: set[int] = set()
        self._why_not = ""
        """Why workers that were able to stay were ended in this round, if they were."""
        self.begun: Begun | None = None
        """How the workers of this round were begun; None while there is nothing to report of that."""
        self._stay = 0

    def note_able(self, local_rank: int, *, able: bool) -> None:
        """Note whether a worker can go into another round."""
        if able:
            self._able.add(local_rank)
        else:
            self._able.discard(local_rank)

    def note_end(self, local_rank: int) -> bool:
        """Note that the process of a worker has ended; return whether its failure in this round is known."""
        self._able.discard(local_rank)
        self.held.discard(local_rank)
        return local_rank in self._failed

    def note_refusal(self, event: WorkerRefuses, alive: AbstractSet[int], now: float) -> None:
        """Note that a worker that was asked cannot leave. There is no wait if all workers that are left refuse."""
        self._refused.add(event.local_rank)
        self._why_not = event.why
        if self.leave_by is not None and alive <= self._refused:
            self.leave_by = now

    def note_failed(self, local_rank: int, alive: AbstractSet[int]) -> bool:
        """Note that a worker leaves its round because a collective has failed; return whether it may, and is new."""
        new = local_rank in alive and local_rank in self._able and local_rank not in self._failed
        if new:
            self._failed.add(local_rank)
        return new

    def take(self, local_rank: int, alive: AbstractSet[int]) -> bool:
        """Hold a worker that is out of its round; return False if it left too late, or without a reason."""
        waits = self.leave_by is not None if self._asked else local_rank in self._failed
        if not (waits and local_rank in alive and local_rank in self._able):
            return False
        self.held.add(local_rank)
        return True

    def end_workers(
        self,
        group: WorkerGroup,
        leave_within_s: float | None,
        grace_s: float,
        now: float,
        signum: int,
        *,
        may_save: bool,
    ) -> list[LeaveRound | Terminate]:
        """Have the workers of a round leave it within this time if all of them can, and otherwise end.

        None if no other round may follow for them. A later call goes on where that stands. Those that did not leave in
        time, and have nothing to save, get no more time to end.
        """
        if leave_within_s is not None and not self._asked and group.alive and group.alive <= self._able:
            self._asked, self.leave_by = True, now + leave_within_s
            return [LeaveRound()]
        if leave_within_s is not None and self.leave_by is not None and now < self.leave_by:
            return []
        if self.leave_by is not None and now >= self.leave_by:
            self._why_not = self._why_not or "a worker was not out of its round in time; see --abort-timeout"
            grace_s = grace_s if may_save else 0.0
        self.leave_by = None
        return [Terminate(signum)] if group.end_within(grace_s, now, signum, may_save=may_save) else []

    def deadlines(self) -> list[tuple[float, Stimulus]]:
        """Return the deadline while the workers leave their round, with what is due then."""
        return [] if self.leave_by is None else [(self.leave_by, Stimulus.LEAVE_OVER)]

    def settle(self, now: float) -> None:
        """Note that the round has ended: workers that are held may wait for `HOLD_S` from now on."""
        self.leave_by = None
        self.hold_until = now + HOLD_S if self.held else None

    def begin(self) -> tuple[int, ...]:
        """Begin a round; return the workers that go into it as the same processes."""
        stay = tuple(sorted(self.held))
        self._stay, self.begun = len(stay), None
        self._asked = False
        self._failed.clear()
        self._refused.clear()
        self._let_go()
        return stay

    def note_started(self, warm: int, workers: int) -> Stimulus:
        """Note that all workers of the round are started, and how many of them warm; return the stimulus."""
        begun = Begun(self._stay, warm, max(workers - self._stay - warm, 0), clip(self._why_not, MESSAGE_MAX))
        self.begun = begun if begun.in_place or begun.warm or begun.why_not else None
        self._why_not = ""
        return Stimulus.STARTED

    def dismiss(self) -> bool:
        """Hold no worker any more; return whether any was held."""
        self._able -= self.held
        return self._let_go()

    def _let_go(self) -> bool:
        held = bool(self.held)
        self.held.clear()
        self.hold_until = None
        return held
