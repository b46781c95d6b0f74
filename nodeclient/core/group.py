"""What the agent knows of its local worker group in one round: who lives, who failed first, how it is to end."""

from __future__ import annotations

import dataclasses

from coordinatord.wire.messages import DURATION_S_MAX, Assignment, Failure, Phase, clip

MESSAGE_MAX = 512
"""Characters of a failure's message, as the protocol bounds it."""


class Group:
    """The worker group of one round. Times are in the agent's clock."""

    def __init__(self, assignment: Assignment | None = None, workers: int = 0) -> None:
        """Begin with `workers` processes that live, or are about to."""
        self.assignment = assignment
        self.alive = set(range(workers))
        self.ending = Phase.STOPPED
        """The phase that its end will lead to."""
        self.kill_at: float | None = None
        self.asked = False
        """Its workers have been asked to end."""
        self._failure: Failure | None = None
        self._failed_at = 0.0

    def rank(self, local_rank: int) -> int:
        """Return the global rank of a worker."""
        return local_rank + (self.assignment.first_rank if self.assignment else 0)

    def fail(self, local_rank: int, exit_code: int, message: str, now: float) -> None:
        """Note the first failure; what fails later does so in consequence."""
        text = clip(message, MESSAGE_MAX)
        self._failure = Failure(self.rank(local_rank), local_rank, exit_code, text, age_s=0.0)
        self._failed_at = now

    def failure(self, now: float) -> Failure | None:
        """Return the first failure with its age as of now."""
        if self._failure is None:
            return None
        return dataclasses.replace(self._failure, age_s=min(now - self._failed_at, DURATION_S_MAX))
