"""What the agent knows of its local worker group in one round: who lives, who failed first, how it is to end."""

from __future__ import annotations

import dataclasses

from coordinatord.wire.messages import (
    DURATION_S_MAX,
    LAST_LINES_MAX,
    LINE_MAX,
    MESSAGE_MAX,
    Assignment,
    Failure,
    Phase,
    clip,
)
from nodeclient.core.events import Account


class Group:
    """The worker group of one round. Times are in the agent's clock."""

    def __init__(self, assignment: Assignment | None = None, origin: str = "") -> None:
        """Begin without processes; `origin` is why the round was formed."""
        self.assignment = assignment
        self.origin = origin
        self.begun = False
        """Its workers are to be started, or were."""
        self.alive: set[int] = set()
        """Workers that live, or are about to, by local rank."""
        self.ending = Phase.STOPPED
        """The phase that its end will lead to."""
        self.kill_at: float | None = None
        self._asked_at: float | None = None
        """When its workers were first asked to end."""
        self._failure: Failure | None = None
        self._failed_at = 0.0

    def rank(self, local_rank: int) -> int:
        """Return the global rank of a worker."""
        return local_rank + (self.assignment.first_rank if self.assignment else 0)

    def ask(self, now: float) -> bool:
        """Note that its workers are asked to end; return whether that is for the first time."""
        first = self._asked_at is None
        if first:
            self._asked_at = now
        return first

    def failed_by_itself(self, exit_code: int, at: float) -> bool:
        """Whether an exit that is told of late was the first failure: before the workers were asked to end."""
        return exit_code != 0 and self._failure is None and self._asked_at is not None and at < self._asked_at

    def fail(self, local_rank: int, exit_code: int, account: Account, now: float) -> None:
        """Note the first failure; what fails later does so in consequence."""
        self._failure = Failure(
            rank=self.rank(local_rank),
            local_rank=local_rank,
            exit_code=exit_code,
            pid=account.pid,
            message=clip(account.message, MESSAGE_MAX),
            error=clip(account.error, MESSAGE_MAX),
            last_lines=tuple(clip(line, LINE_MAX) for line in account.last_lines[-LAST_LINES_MAX:]),
            age_s=0.0,
        )
        self._failed_at = now

    def failure(self, now: float) -> Failure | None:
        """Return the first failure with its age as of now."""
        if self._failure is None:
            return None
        return dataclasses.replace(self._failure, age_s=min(now - self._failed_at, DURATION_S_MAX))
