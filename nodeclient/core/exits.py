"""The exits of the workers of a round: which of them failed first, and which have exited with 0."""

from __future__ import annotations

from signal import Signals

from msgspec import structs

from coordinatord.hints.network import lost_connection
from coordinatord.hints.same_error import have_same_error
from coordinatord.protocol.exit_codes import shell_exit_code
from coordinatord.protocol.fields import (
    CONSEQUENCES_MAX,
    DURATION_S_MAX,
    LAST_LINES_MAX,
    LINE_MAX,
    RANKS_MAX,
    SENTENCE_MAX,
    XIDS_MAX,
)
from coordinatord.protocol.messages import Ended, Failure, Follower, LastOutput
from coordinatord.protocol.text import clip, shorten
from nodeclient.core.ending import GroupEnding
from nodeclient.core.events import Diagnosis
from nodeclient.core.table import EndStage

_ENDED_BY_US = frozenset({0, 128 + Signals.SIGKILL})
"""The exit codes, as a shell gives them, of workers that this node has asked to end; that of the signal is added."""


_CHOSEN_BY_SCRIPT = range(2, 128)
"""The exit codes that only the script can have chosen: 1 follows any exception, and signals make those from 128."""


class Exits:
    """The exits of the workers of one round. Times are in the agent's clock.

    For each exit, `WorkerGroup` asks `ended_by_itself` (for `Reuse`), calls `record_exit`, and then `judge`, unless the
    worker was judged before, when a collective failed in it.
    """

    def __init__(self, first_rank: int, ending: GroupEnding) -> None:
        """Begin without exits. The worker with local rank 0 has rank `first_rank`; `ending` is the end of the round."""
        self._first_rank = first_rank
        self._ending = ending
        self._failure: Failure | None = None
        """The first failure so far; see `judge`."""
        self._failed_at = 0.0
        self._failed_too: Failure | None = None
        """The first worker that has ended with an error of its own only after this node had signalled it."""
        self._failed_too_at = 0.0
        self._ended: list[tuple[int, float]] = []
        """The ranks of the first workers that exited with 0 before the round began to end, and when they did: the
        failure of another worker may follow from that."""
        self.early_output: LastOutput | None = None
        """What the first of these wrote last, once the round is over here: only then may the coordinator judge it."""

    def rank(self, local_rank: int) -> int:
        """Return the global rank of a worker, limited to what a message can hold: a failure is always reported."""
        return min(local_rank + self._first_rank, RANKS_MAX)

    def judge(self, local_rank: int, exit_code: int, diagnosis: Diagnosis, at: float) -> None:
        """Judge whether a worker that ended, failed to start, or left its round at `at` is the first failure.

        It failed *by itself* if this node had sent no signal, and its error is not that of a lost connection to another
        worker. Between the beginning of the end and the signal, workers save and leave the round, so a connection that
        is lost then may be a consequence of that. There are four cases:

        * No worker has failed so far: it is the first if it failed by itself, or before the round began to end.
        * None has failed, and this one did neither, but has an error of its own: see below.
        * The first one had lost a connection, and this one failed by itself: it takes the place of the first, which may
          be its consequence, as the other end of the connection.
        * Otherwise it becomes a follower of the first one, unless this node may have ended it and it does not have the
          same error.

        A bug of the script ends all workers at once. Most of them have written their exception when this node signals
        them, or are about to exit with the same code, and have not exited yet. So a worker with the same error counts
        as one that failed, however it ended. It becomes a follower of the first failure. If there is none yet, it is
        kept as `failed_too`, since an earlier failure may be judged later: a failed collective comes after the exits
        that the shell saw at the same time. If the round failed elsewhere, there is no first failure here, and the
        coordinator compares `failed_too` with the failures of other nodes.
        """
        first, new = self._failure, self._failure_of(local_rank, exit_code, diagnosis)
        before_end = exit_code != 0 and not self._ending.had_begun(at)
        by_itself = exit_code != 0 and not self._ending.had_signalled(at) and not lost_connection(new)
        if first is None:
            if before_end or by_itself:
                self._failure, self._failed_at = new, at
                if self._failed_too is not None and have_same_error(self._failed_too, new):
                    self._failure = _ahead_of(self._failed_too, new, same_error=True)
            elif self._failed_too is not None:
                self._failed_too = self._followed(self._failed_too, new, at)
            elif _has_own_error(new) and not lost_connection(new):
                self._failed_too, self._failed_too_at = structs.replace(new, stopped=True), at
        elif by_itself and lost_connection(first):
            self._failure, self._failed_at = _ahead_of(first, new, same_error=False), at
        else:
            self._failure = self._followed(first, new, at)

    def _followed(self, first: Failure, new: Failure, at: float) -> Failure:
        """Return a failure with a later one at `at` as its follower, unless that is only the doing of this node.

        Once the workers are signalled, an end without an error of the worker's own may be the answer to the signal.
        """
        same = have_same_error(new, first) and (_has_own_error(new) or not self._ending.had_signalled(at))
        if (self._may_be_our_doing(new.exit_code) and not same) or len(first.followers) == CONSEQUENCES_MAX:
            return first
        follower = Follower(new.rank, new.exit_code, same, new.left)
        return structs.replace(first, followers=(*first.followers, follower))

    def _failure_of(self, local_rank: int, exit_code: int, diagnosis: Diagnosis) -> Failure:
        return Failure(
            rank=self.rank(local_rank),
            local_rank=local_rank,
            exit_code=exit_code,
            pid=diagnosis.pid,
            message=clip(diagnosis.message, SENTENCE_MAX),
            error=shorten(diagnosis.error, SENTENCE_MAX),
            last_lines=tuple(clip(line, LINE_MAX) for line in diagnosis.last_lines[-LAST_LINES_MAX:]),
            followers=(),
            age_s=0.0,
            left=diagnosis.left,
            final=diagnosis.final,
            xids=tuple(min(xid, RANKS_MAX) for xid in diagnosis.xids[-XIDS_MAX:]),
            log=diagnosis.log,
        )

    def _may_be_our_doing(self, exit_code: int) -> bool:
        """Whether a worker with this exit code may have ended because this node asked it to, or killed it."""
        return shell_exit_code(exit_code) in _ENDED_BY_US | {128 + self._ending.signum}

    def ended_by_itself(self, exit_code: int, at: float) -> bool:
        """Whether a worker that exited at `at` surely did so without a signal of this node.

        This node sends SIGKILL only after the stage `SIGNALLED`, so in that stage another program has sent it.
        """
        killed_by_others = exit_code == -Signals.SIGKILL and self._ending.stage is EndStage.SIGNALLED
        return not self._ending.had_signalled(at) or not self._may_be_our_doing(exit_code) or killed_by_others

    def record_exit(self, local_rank: int, exit_code: int, at: float) -> None:
        """Record that a worker exited at `at`."""
        if self._failure is not None and self._failure.local_rank == local_rank:
            self._failure = structs.replace(self._failure, left=False)  # it did not leave in time
        if exit_code == 0 and not self._ending.had_begun(at) and len(self._ended) < CONSEQUENCES_MAX:
            self._ended.append((self.rank(local_rank), at))

    def ended(self, now: float) -> tuple[Ended, ...]:
        """Return the first workers that exited with 0 before the round began to end, with the ages of their exits."""
        return tuple(
            Ended(rank, min(max(now - at, 0.0), DURATION_S_MAX), None if number else self.early_output)
            for number, (rank, at) in enumerate(self._ended)
        )

    def failure(self, now: float) -> Failure | None:
        """Return the first failure with its age as of now; None without a failure."""
        return _aged(self._failure, self._failed_at, now)

    def failed_too(self, now: float) -> Failure | None:
        """Return the first worker that ended with an error of its own after the signal, if none failed before."""
        return None if self._failure is not None else _aged(self._failed_too, self._failed_too_at, now)


def _has_own_error(failure: Failure) -> bool:
    """Whether what is known of a worker tells an error of its own, even if it came after the signal of this node.

    That takes an exception, or an exit code that only the script can have chosen, perhaps in its handler of SIGTERM. A
    code of a handler is compared with that of the first failure, which came without a signal of this node.
    """
    return failure.error != "" or failure.exit_code in _CHOSEN_BY_SCRIPT


def _ahead_of(known: Failure, new: Failure, *, same_error: bool) -> Failure:
    """Return a new failure that is followed by a known failure and by the followers of the known one.

    Those were compared with the known failure. So they have the error of the new one only if the known one has it, too.
    """
    known_ones = (Follower(known.rank, known.exit_code, True, known.left), *known.followers)[:CONSEQUENCES_MAX]
    followers = (structs.replace(each, same_error=each.same_error and same_error) for each in known_ones)
    return structs.replace(new, followers=tuple(followers))


def _aged(failure: Failure | None, at: float, now: float) -> Failure | None:
    return None if failure is None else structs.replace(failure, age_s=min(now - at, DURATION_S_MAX))
