"""Operators' requests, such as `nodeclient stop` and `nodeclient drain`, and the results of their answers.

`core/admin` carries them out.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Request(Struct, frozen=True):
    """A request of an operator."""

    target: str
    """The job, if the name of the request's class ends in `Job`; otherwise the node or host."""
    by: str
    """The operator's name, which is not verified."""
    why: str
    """The operator's reason; empty if none is given."""
    dry_run: bool = False
    """Whether nothing is to change, and only the answer is wanted."""

    def attribution(self, done: str) -> str:
        """Return who did what, and why: 'drained by alice@login1: bad memory'."""
        return f"{done} by {self.by}" + (f": {self.why}" if self.why else "")


class StopJob(Request, frozen=True):
    """End the run of a job after its workers have saved their state."""

    no_persist: bool = False
    """Whether a run that is to end stops waiting for its last step to be on the disk."""


class RestartJob(Request, frozen=True):
    """Let the workers of a job save their state, and form another round."""


class ForgetJob(Request, frozen=True):
    """Remove all that is known of a job."""


class PreflightJob(Request, frozen=True):
    """Test in pairs the nodes of a job that have no workers."""


class DrainNode(Request, frozen=True):
    """Have a node, or all nodes of a host, leave their jobs, and let them in no more."""

    ahead: bool = False
    """Whether no node needs to have the name yet; otherwise an unknown name counts as a typing error."""
    after: tuple[str, ...] = ()
    """The names that a dry run would drain before this one, so that its answer counts the nodes that are left."""


class UndrainNode(Request, frozen=True):
    """Let a drained node in again."""


class QuarantineNode(Request, frozen=True):
    """Have rounds do without the host of a node, if they can."""


class PardonNode(Request, frozen=True):
    """Drop all charges against the host of a node, and its quarantine."""


class AdminResult(StrEnum):
    """The result of a request."""

    DONE = "done"
    NOTHING = "nothing"
    """There was nothing to do."""
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_NODE = "unknown_node"
    REFUSED = "refused"
    """The request would do harm; the answer says what to do instead."""
    CANNOT_RECORD = "cannot_record"
    """Nothing can be recorded, so nothing was done; the request may be repeated later."""
