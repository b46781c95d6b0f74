"""What an operator may ask of the coordinator, and how that is answered; `transitions/admin` carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Request:
    """Something that a person wants, who said who it is: nobody has checked that."""

    target: str
    """The job; of a drain, the node or host."""
    by: str
    why: str
    """In the person's own words; may be empty."""

    def words(self, done: str) -> str:
        """Say that it was `done`, by whom and why: 'drained by alice@login1: bad memory'."""
        return f"{done} by {self.by}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True)
class StopJob(Request):
    """End the run of a job: workers save their state, nodes go."""


@dataclass(frozen=True, slots=True)
class RestartJob(Request):
    """Let the workers of a job save their state, and form another round."""


@dataclass(frozen=True, slots=True)
class ForgetJob(Request):
    """Let nothing be known of a job any more."""


@dataclass(frozen=True, slots=True)
class DrainNode(Request):
    """Let a node, or all nodes of a host, leave their jobs, and take them in no more."""

    ahead: bool = False
    """Also if no node of that name is there yet: without it, a name that nobody has is taken for a slip."""


@dataclass(frozen=True, slots=True)
class UndrainNode(Request):
    """Take a drained node in again."""


class Verdict(StrEnum):
    """What became of a request."""

    DONE = "done"
    NOTHING = "nothing"
    """It is as was asked already, or nothing is there to be done."""
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_NODE = "unknown_node"
    REFUSED = "refused"
    """It would do harm; the answer says what to do instead."""
    UNRECORDED = "cannot_record"
    """What would be decided could be forgotten; the same may be asked again later."""
