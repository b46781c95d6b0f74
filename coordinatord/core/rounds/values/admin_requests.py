"""Operators' requests and their answers; `transitions/admin` carries them out."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Request(Struct, frozen=True):
    """A person's request. The person's name is not checked."""

    target: str
    """The job; for a drain, the node or host."""
    by: str
    why: str
    """The person's reason, as given; may be empty."""
    dry_run: bool = False
    """Whether only the answer is wanted, and nothing is to change."""

    def attribution(self, done: str) -> str:
        """Return the action, its person and reason: 'drained by alice@login1: bad memory'."""
        return f"{done} by {self.by}" + (f": {self.why}" if self.why else "")


class StopJob(Request, frozen=True):
    """End the run of a job: workers save their state, nodes go."""


class RestartJob(Request, frozen=True):
    """Let the workers of a job save their state, and form another round."""


class ForgetJob(Request, frozen=True):
    """Remove all that is known of a job."""


class DrainNode(Request, frozen=True):
    """Make a node, or all nodes of a host, leave their jobs, and let them in no more."""

    ahead: bool = False
    """Whether the name may be one that no node has yet; otherwise such a name is taken for a typing error."""
    after: tuple[str, ...] = ()
    """The names that a dry run would drain before this one."""


class UndrainNode(Request, frozen=True):
    """Let a drained node in again."""


class AdminResult(StrEnum):
    """The result of a request."""

    DONE = "done"
    NOTHING = "nothing"
    """It is as requested already, or there is nothing to do."""
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_NODE = "unknown_node"
    REFUSED = "refused"
    """It would do harm; the answer says what to do instead."""
    DEGRADED = "cannot_record"
    """Nothing can be recorded, so nothing was decided; the same may be requested again later."""
