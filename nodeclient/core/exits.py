"""How the workers of a round end one by one: which of them failed first, and which have exited with 0."""

from __future__ import annotations

from signal import Signals

from msgspec import structs

from coordinatord.hints.network import lost_connection
from coordinatord.protocol.exit_codes import shell_exit_code
from coordinatord.protocol.fields import (
    CONSEQUENCES_MAX,
    DURATION_S_MAX,
    LAST_LINES_MAX,
    LINE_MAX,
    LOG_MAX,
    MESSAGE_MAX,
    RANKS_MAX,
)
from coordinatord.protocol.messages import Ended, Failure, Follower
from coordinatord.protocol.text import clip, is_same_error
from nodeclient.core.ending import Ladder
from nodeclient.core.events import Diagnosis
from nodeclient.core.table import EndStage

_ENDED_BY_US = frozenset({0, 128 + Signals.SIGKILL})
"""Exit codes, as a shell gives them, of workers that were asked to end, besides that of the signal."""


class Exits:
    """The exits of the workers of one round. Times are in the agent's clock."""

    def __init__(self, first_rank: int, ending: Ladder) -> None:
        """Begin without any. The worker with local rank 0 has `first_rank`; `ending` is how the workers are ended."""
        self._first_rank = first_rank
        self._ending = ending
        self._failure: Failure | None = None
        self._failed_at = 0.0
        self._ended: list[tuple[int, float]] = []
        """The ranks of the first workers that exited with 0 without being asked to, and when."""

    def rank(self, local_rank: int) -> int:
        """Return the global rank of a worker.

        It is limited to what a message can hold: a failure is reported even if a coordinator assigned higher ranks.
        """
        return min(local_rank + self._first_rank, RANKS_MAX)

    def _failure_of(self, local_rank: int, exit_code: int, diagnosis: Diagnosis) -> Failure:
        return Failure(
            rank=self.rank(local_rank),
            local_rank=local_rank,
            exit_code=exit_code,
            pid=diagnosis.pid,
            message=clip(diagnosis.message, MESSAGE_MAX),
            error=clip(diagnosis.error, MESSAGE_MAX),
            last_lines=tuple(clip(line, LINE_MAX) for line in diagnosis.last_lines[-LAST_LINES_MAX:]),
            followers=(),
            age_s=0.0,
            left=diagnosis.left,
            final=diagnosis.final,
            log=diagnosis.log if diagnosis.log.isprintable() and len(diagnosis.log) <= LOG_MAX else "",
        )

    def record(self, local_rank: int, exit_code: int, diagnosis: Diagnosis, at: float) -> None:
        """Record that a worker ended, failed to start, or left its round at `at`.

        Its failure is the first one if it came before the workers were to end. It also is if no signal had asked the
        worker to end, and it lost no connection to a peer, while the failure that is known so far did: that one may be
        its consequence. Otherwise it is a consequence itself.
        """
        first, late = self._failure, self._failure_of(local_rank, exit_code, diagnosis)
        before = exit_code != 0 and (self._ending.began_at is None or at < self._ending.began_at)
        unasked = self._ending.signalled_at is None or at < self._ending.signalled_at
        by_itself = exit_code != 0 and unasked and not lost_connection(late)
        if first is None:
            if before or by_itself:
                self._failure, self._failed_at = late, at
        elif by_itself and lost_connection(first):
            followers = (Follower(first.rank, first.exit_code, left=first.left), *first.followers)[:CONSEQUENCES_MAX]
            self._failure, self._failed_at = structs.replace(late, followers=followers), at
        elif not self._may_be_asked(exit_code) and len(first.followers) < CONSEQUENCES_MAX:
            same = is_same_error(diagnosis.error or diagnosis.message, first.error or first.message)
            follower = Follower(late.rank, exit_code, same, late.left)
            self._failure = structs.replace(first, followers=(*first.followers, follower))

    def _may_be_asked(self, exit_code: int) -> bool:
        """Whether an exit code may be that of a worker which this node asked to end, or killed."""
        return shell_exit_code(exit_code) in _ENDED_BY_US | {128 + self._ending.signum}

    def ended_by_itself(self, exit_code: int, at: float) -> bool:
        """Whether a worker certainly exited at `at` without having been asked to end, or killed, by this node."""
        is_not_killed_yet = self._ending.stage is EndStage.SIGNALLED
        unasked = self._ending.signalled_at is None or at < self._ending.signalled_at
        return unasked or not self._may_be_asked(exit_code) or (exit_code == -Signals.SIGKILL and is_not_killed_yet)

    def record_exit(self, local_rank: int, exit_code: int, at: float) -> None:
        """Record that a worker exited at `at`.

        One that exits with 0 after it was asked to end is not among those that `ended` returns.
        """
        if self._failure is not None and self._failure.local_rank == local_rank:
            self._failure = structs.replace(self._failure, left=False)  # it did not leave in time
        unasked = self._ending.began_at is None or at < self._ending.began_at
        if exit_code == 0 and unasked and len(self._ended) < CONSEQUENCES_MAX:
            self._ended.append((self.rank(local_rank), at))

    def ended(self, now: float) -> tuple[Ended, ...]:
        """Return the first workers that exited with 0 without being asked to, with their ages as of now."""
        return tuple(Ended(rank, min(max(now - at, 0.0), DURATION_S_MAX)) for rank, at in self._ended)

    def failure(self, now: float) -> Failure | None:
        """Return the first failure with its age as of now."""
        if self._failure is None:
            return None
        return structs.replace(self._failure, age_s=min(now - self._failed_at, DURATION_S_MAX))
