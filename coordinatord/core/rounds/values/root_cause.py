"""Finds the root cause of a round's end, once each node has confirmed that its workers are gone, or is lost.

A judgement before that would depend on the order in which messages arrive. When a node vanishes, its peers' workers
fail because of the broken connection, milliseconds before the coordinator knows that the node is gone. Such a failure
is a consequence. Only the root cause is charged: it may use up one of the restarts that the user allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from signal import Signals

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.hints.early_ends import left_early
from coordinatord.hints.match import cause_of, needed_others
from coordinatord.hints.network import lost_connection
from coordinatord.hints.same_error import have_same_error, shared_by
from coordinatord.protocol.exit_codes import describe_exit, signal_behind
from coordinatord.protocol.fields import CONSEQUENCES_MAX, DURATION_S_MAX
from coordinatord.protocol.messages import Cause, EarlyEnd, Failure, LastOutput
from coordinatord.protocol.text import name_some, shorten

HEADLINE_MAX = 200
"""The most characters of a worker's error in the reason of a round and of a run, which is a line of the status. A
longer error is cut in its middle, by `shorten`. The report has the whole error."""

CUT_OFF = "had ended the workers, out of touch for too long"
"""Follows the names of nodes in a sentence: they were cut off from the coordinator for the outage grace."""

CLOCK_DRIFT = 0.001
"""The most that the clocks of two hosts differ, as a fraction of the measured time: NTP slews either by at most
0.0005 (adjtimex(2))."""


class WorkerFailure(Struct, frozen=True):
    """The failure of the first failed worker of a node."""

    node: str
    host: str
    at: float
    """When it failed, in the coordinator's clock."""
    failure: Failure
    leaving: bool = False
    """Whether the node was asked to leave by then, for example by a scheduler that takes its host away."""
    early: tuple[EarlyEnd, ...] = ()
    """The first workers of the round that had exited with 0 by then; empty until the round is judged."""
    early_output: LastOutput | None = None
    """What the first of these wrote last, if that is known."""
    same_error_count: int = 0
    """How many other workers failed with the same error, as far as known; 0 until the round is judged."""
    workers: int = 0
    """How many workers the round had; 0 until it is judged."""
    excused_by: str = ""
    """The lost node that may have caused it, so that it is not charged; empty without one."""

    @property
    def cause(self) -> Cause:
        """The class of its cause, by which it is decided who is charged."""
        if self._left_early:
            return Cause.USER_CODE  # the script ends earlier on some ranks than on others
        cause = cause_of(self.failure)
        is_asked = self.leaving and signal_behind(self.failure.exit_code) == Signals.SIGTERM
        return Cause.PREEMPTED if is_asked else cause

    @property
    def _left_early(self) -> str:
        """Which workers had exited with 0 while this one still needed them, as a sentence; empty if it needed none."""
        return left_early(self.node, self.failure, self.early)

    def __str__(self) -> str:
        """Return a headline; the report has the rest."""
        failure = self.failure
        if self._left_early:
            return self._left_early
        if failure.hang is not None or failure.diverged:
            return failure.message
        if not failure.pid:
            return f"node {self.node} could not start its workers: {failure.message}"
        ending, error = describe_exit(failure.exit_code), failure.error or failure.message
        if failure.exit_code == 1 and error:
            ending = ""  # as with any exception
        problem = shorten(": ".join(filter(None, (ending, error))), HEADLINE_MAX)
        if failure.left:
            return f"a collective failed on rank {failure.rank} on node {self.node}: {problem}"
        if shared := shared_by(failure, self.same_error_count, self.workers):
            is_one_of_them = self.same_error_count + 1 < self.workers
            example = f", such as rank {failure.rank} on node {self.node}" if is_one_of_them else ""
            return f"{shared} failed with the same error{example}: {problem}"
        return f"rank {failure.rank} on node {self.node} failed: {problem}"


class LostNode(Struct, frozen=True):
    """A node of the round that was lost."""

    node: str
    silent_since: float


class GoodExit(Struct, frozen=True):
    """A worker of the round that exited with 0."""

    node: str
    rank: int
    at: float
    """When it exited, in the coordinator's clock."""
    output: LastOutput | None = None
    """What it wrote last, if it was the first of its node; else None."""


class RoundVerdict(Struct, frozen=True):
    """The judgement on what ended a round."""

    reason: str
    root_cause: WorkerFailure | None
    """The failure that ended it; None if no worker failed by itself. Its `cause` says whether it counts against the
    budget of restarts: that of a broken GPU does not."""
    excused: WorkerFailure | None = None
    """The first failure if it is an error of the script that a lost node may have caused: shown, and not charged."""


def find_root_cause(
    trigger: str,
    consequences_from: float | None,
    failures: Collection[WorkerFailure],
    losses: Collection[LostNode],
    good_exits: Iterable[GoodExit],
    collateral_s: float,
    failed_too: Collection[WorkerFailure] = (),
    workers: int = 0,
    cut_off: Collection[str] = (),
) -> RoundVerdict:
    """Judge what ended a round.

    `trigger` is the reason for which the round was stopped. From `consequences_from` on, failures are consequences of
    the stop; None if a failure caused the stop. A failure up to `collateral_s` seconds before another failure, or
    before a node is lost, may still be a consequence of that.

    The first of these is to blame: a lost node that may have caused the first failure; the nodes in `cut_off`, which
    had ended their workers because they were out of touch, if the failed worker needed others; a stop for another
    reason; the first failure. It is counted how many of the round's `workers` had the same error. The failures in
    `failed_too` count only for that: their own error had ended these workers, but they were stopped before they exited.
    """
    if not failures:
        return RoundVerdict(trigger, None)
    first = _first_of(failures, collateral_s)
    same = _count_same_error(first, [*failures, *failed_too])
    first = replace(first, same_error_count=same, workers=workers)
    # Its age is by its host's clock, which may drift. In doubt it is a consequence, for which nothing is charged.
    first_at = first.at + CLOCK_DRIFT * first.failure.age_s
    follows_stop = consequences_from is not None and first_at >= consequences_from
    losses = [loss for loss in losses if _may_have_caused(loss, first, collateral_s)]
    if losses:
        loss = min(losses, key=lambda loss: loss.silent_since)
        return _judge_loss(loss, failures, None if follows_stop else first)
    if cut_off and needed_others(first.failure):
        return RoundVerdict(f"{name_some(cut_off, len(cut_off))} {CUT_OFF}{_consequence(failures)}", None)
    if follows_stop:
        return RoundVerdict(trigger + _consequence(failures), None)
    first = _with_early(first, good_exits, collateral_s)
    return RoundVerdict(str(first), first)


def _judge_loss(loss: LostNode, failures: Collection[WorkerFailure], first: WorkerFailure | None) -> RoundVerdict:
    """Judge a round that ended because a node was lost; `first` is the first failure, if that came before the stop.

    An error of the script is most likely no consequence, and may come again. So it is named, though not charged.
    """
    lost, others = f"lost node {loss.node}", [failure for failure in failures if failure.node != loss.node]
    if first is None or first.cause is not Cause.USER_CODE:
        return RoundVerdict(lost + _consequence(others), None)
    others = [each for each in others if each.node != first.node and not have_same_error(each.failure, first.failure)]
    reason = f"{lost}{_consequence(others)}; not charged, as the loss may have caused it: {first}"
    return RoundVerdict(reason, None, replace(first, excused_by=loss.node))


def _with_early(first: WorkerFailure, good_exits: Iterable[GoodExit], collateral_s: float) -> WorkerFailure:
    """Return the root cause with the workers that had exited with 0 before it, in the order of their exits.

    A worker that exits closes its connections first, so its peers may fail a moment before it has exited.
    """
    until = first.at + (collateral_s if lost_connection(first.failure) else 0.0)
    early = sorted((each for each in good_exits if each.at < until), key=lambda each: each.at)[:CONSEQUENCES_MAX]
    ends = (EarlyEnd(each.node, each.rank, min(max(0.0, first.at - each.at), DURATION_S_MAX)) for each in early)
    return replace(first, early=tuple(ends), early_output=early[0].output if early else None)


def _count_same_error(first: WorkerFailure, failures: Iterable[WorkerFailure]) -> int:
    """Return how many workers failed with the same error as the first one, without that one."""
    same = [each for each in failures if each.node == first.node or have_same_error(each.failure, first.failure)]
    return len(same) - 1 + sum(follower.same_error for each in same for follower in each.failure.followers)


def _first_of(failures: Collection[WorkerFailure], collateral_s: float) -> WorkerFailure:
    """Return the first failure; if that is a lost connection, the first of another kind that comes soon after it.

    A worker may lose its connection to a failed peer before the peer's own node notices that the peer has failed.
    """
    first = min(failures, key=lambda failure: failure.at)
    if not lost_connection(first.failure):
        return first
    soon = (each for each in failures if each.at <= first.at + collateral_s and not lost_connection(each.failure))
    return min(soon, default=first, key=lambda failure: failure.at)


def _may_have_caused(loss: LostNode, first: WorkerFailure, collateral_s: float) -> bool:
    """Whether the first failure may be a consequence of the loss of a node."""
    # A node that reported its own worker's failure was alive then, whatever `silent_since` says.
    own = loss.node == first.node
    if first.failure.diverged:  # the coordinator itself has seen that, and no loss changes a state
        return False
    return loss.silent_since <= first.at + collateral_s and not (own and loss.silent_since < first.at)


def _consequence(failures: Collection[WorkerFailure]) -> str:
    if not failures:
        return ""
    nodes = "node" if len(failures) == 1 else "nodes"
    did = "left the round" if all(failure.failure.left for failure in failures) else "failed"
    return f"; workers on {len(failures)} other {nodes} {did} in consequence"
