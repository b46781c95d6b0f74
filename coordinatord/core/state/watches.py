"""Watches: the looks at the workers of a round, its checkpoints, and whether the coordinator itself was asleep.

Nothing of it is recorded. A coordinator that was started again looks anew, since a stall itself is on record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coordinatord.core.policy import Policy
from coordinatord.core.values.lateness import Lateness, NodeArrivals, Offset, arrivals_of, better_offset, compare
from coordinatord.core.values.look_comparison import ANSWERED_WITHIN_S, APART_S, PAUSE_MAX_S, PAUSE_S
from coordinatord.hints.hang_verdict import HangVerdict
from coordinatord.hints.seen_worker import SeenWorker

Look = tuple[SeenWorker, ...]


@dataclass(slots=True)
class HangWatch:
    """The looks at one stall."""

    pending: int = 0
    """The number of the look that is on its way; 0 if none is."""
    due_at: float = -math.inf
    """When the next look is due, or the one on its way is given up."""
    first: Look | None = None
    """The look that the next one is compared with; None if the next one is the first of two."""
    found: HangVerdict | None = None
    """The workers that hold up all others, by the last two looks; None if these have not shown any."""
    second: Look = ()
    """The later of these two."""
    notice: str = ""
    """What the last looks have shown where nothing is done about it; empty if nothing."""
    at_rest: bool = False
    """Whether no worker comes to a collective any more, in a round whose workers report no steps."""
    is_tolerated: bool = False
    """Whether the worker that holds up all others waits for something outside the job, and not for too long."""
    still: Look = ()
    """The earliest look since which that worker has stood still."""
    still_at: float = 0.0
    """When that look was taken in."""
    first_at: float = 0.0
    """When `first` was taken in."""
    noted: bool = False
    """Whether it is on record that the others wait for a worker that computes."""
    remark: str = ""
    """What users are warned of: no restart is left, and torch's own timeout is to end the round. Empty if nothing."""
    _numbers: int = 0
    _pause_s: float = PAUSE_S

    def begin(self, now: float) -> int:
        """Begin a look; return its number. An earlier one that is still on its way is given up."""
        if self.pending:
            self.give_up(now)
        self._numbers += 1
        self.pending, self.due_at = self._numbers, now + ANSWERED_WITHIN_S
        return self.pending

    def keep(self, look: Look, now: float, apart_s: float) -> None:
        """Keep the first of two looks; the other one comes so many seconds later."""
        self.pending, self.first, self.first_at, self.due_at = 0, look, now, now + apart_s

    def look_again(self, now: float) -> None:
        """Have a later look compared with the first: it is too early to judge by this one."""
        self.pending, self.due_at = 0, now + APART_S

    def give_up(self, now: float) -> None:
        """Forget both looks, and wait before the next two."""
        self.pending, self.first, self.due_at = 0, None, now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def clear(self) -> None:
        """Forget the stall: workers get on again, or their round is over. Answers to an old look no longer count."""
        self.pending, self.first, self.found, self.second = 0, None, None, ()
        self.notice, self.at_rest, self.noted, self.remark = "", False, False, ""
        self.is_tolerated, self.still = False, ()
        self.due_at, self._pause_s = -math.inf, PAUSE_S


AGREEING = 3
"""Looks in a row that name the same laggard, before anything is done about it."""


@dataclass(slots=True)
class LatenessWatch:
    """The looks at the workers of one round, and the offsets of the hosts' clocks."""

    known: Lateness | None = None
    """What the last look has shown; None before the first, or if it has shown too little."""
    agreeing: int = 0
    """How many looks in a row have named the present laggard."""
    _offsets: dict[str, Offset] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the workers of a round; the offsets of clocks stay."""
        self.known, self.agreeing = None, 0

    def take_in(self, answers: Sequence[NodeArrivals], step_s: float | None, now: float) -> None:
        """Take in the answers of a look."""
        before = None if self.known is None else self.known.laggard
        self._offsets = {answer.node: better_offset(self._offsets.get(answer.node), answer) for answer in answers}
        arrivals = [arrival for answer in answers for arrival in arrivals_of(answer, self._offsets[answer.node], now)]
        self.known = compare(arrivals, step_s)
        laggard = None if self.known is None else self.known.laggard
        same = laggard is not None and before is not None and laggard.node == before.node
        self.agreeing = (self.agreeing if same else 0) + (laggard is not None)


NONE_YET = -1
"""Stands for the step of a node whose workers will write checkpoints, and have written none."""


@dataclass(slots=True)
class CheckpointWatch:
    """The newest checkpoint of the current round, and when it became known: nodes that arrived may wait for one.

    It counts nodes by their newest checkpoints, so that the cost of a report does not grow with their number.
    """

    at: float = -math.inf
    """When the newest checkpoint of all nodes became known, or a step that was saved at an interval became whole."""
    _round: int = 0
    _steps: dict[str, int] = field(default_factory=dict)
    """The step of the newest checkpoint of each node whose script writes any."""
    _nodes_at: Counter[int] = field(default_factory=Counter)
    _common: int = NONE_YET
    _unheard: set[str] = field(default_factory=set)
    """The nodes that have not been heard since this coordinator was started, if an earlier one formed the round. Until
    all have been heard, nobody knows whether a checkpoint is a new one."""

    @property
    def are_written(self) -> bool:
        """Whether the script writes checkpoints by itself, as far as is known."""
        return bool(self._steps)

    def begin(self, round_number: int, unheard: Iterable[str] = ()) -> None:
        """Forget what was known of an earlier round; of this one, `unheard` are the nodes whose reports may be old."""
        if round_number != self._round:
            self._round, self._common, self._unheard = round_number, NONE_YET, set(unheard)
            self._steps.clear()
            self._nodes_at.clear()

    def note(self, node: str, step: int, now: float) -> None:
        """Note the newest checkpoint that all workers of a node have written."""
        before = self._steps.get(node)
        if before == step:
            return
        if before is not None:
            self._nodes_at[before] -= 1
            if not self._nodes_at[before]:
                del self._nodes_at[before]
        self._steps[node] = step
        self._nodes_at[step] += 1
        common = min(self._nodes_at)
        if self._unheard:
            self._common = common
        elif common > self._common:
            self._common, self.at = common, now

    def note_whole(self, now: float) -> None:
        """Note that a step which was saved at an interval is whole."""
        if not self.are_written and not self._unheard:
            self.at = now

    def note_known(self, node: str) -> None:
        """Note that a node of the round has reported: what it reports from now on is new."""
        self._unheard.discard(node)


class StallWatch:
    """Notices that the coordinator was asleep: stopped, swapped out, or too busy to read messages.

    It looks at the clock at regular times, and a look that comes late shows a sleep. It reads the messages of that time
    only afterwards. So deadlines that rest on the silence of nodes are put off by the sleep.
    """

    def __init__(self) -> None:
        self.awake_at = -math.inf
        """Up to when nodes could be judged: when the last event was handled, unless that was late."""
        self.woke_at = -math.inf
        """When the coordinator last began to answer after a time in which it could not."""
        self.next_at = -math.inf
        """When to look at the clock again."""
        self._returns_until = -math.inf
        """The time up to which a node may come back whose connection has closed."""

    def begin(self, policy: Policy, now: float) -> None:
        """Begin to watch."""
        self.awake_at = self.woke_at = now
        self.look_again(policy, now)

    def look_again(self, policy: Policy, now: float) -> None:
        """Look at the clock a heartbeat later, or sooner while a node has only a short time to come back."""
        is_short = now < self._returns_until
        self.next_at = now + (policy.reconnect_grace_s / 4 if is_short else policy.heartbeat_s)

    def await_return(self, policy: Policy, now: float) -> None:
        """Look more often for as long as a node may come back.

        A sleep of less than a heartbeat may take most of that time, and the node's join is read only after it.
        """
        self._returns_until = now + policy.reconnect_grace_s
        self.next_at = min(self.next_at, now + policy.reconnect_grace_s / 4)

    def note(self, due: float | None, least_s: float, policy: Policy, now: float) -> bool:
        """Note an event, where one was `due`; return whether a sleep of more than `least_s` is to be forgiven.

        The coordinator may have fallen asleep at any time after the last event.
        """
        late_s = policy.heartbeat_s
        if self.awake_at < self._returns_until:
            late_s = min(late_s, policy.reconnect_grace_s / 2)
        is_late = due is not None and now - due > late_s
        if not is_late:
            self.awake_at = now
        if now >= self.next_at:
            self.look_again(policy, now)
        return is_late and now - self.awake_at > least_s

    def wake(self, policy: Policy, now: float) -> float:
        """Judge nodes from now on; return the time since they could last be judged, in seconds."""
        asleep_s = now - self.awake_at
        if self.awake_at < self._returns_until:
            self._returns_until += asleep_s
        self.begin(policy, now)
        return asleep_s
