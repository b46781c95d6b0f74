"""Defines a row of the tables of known causes, which are in `launch`, `network` and `resource`. Pure.

To add a cause, add a row there, and a real message of it to the test. A row must be certain: an ordinary exception of
the script gets no hint.
"""

from __future__ import annotations

from msgspec import Struct

from coordinatord.protocol.messages import Cause


class HintRule(Struct, frozen=True):
    """One known cause. It matches a failure if all conditions hold that are given."""

    cause: Cause
    name: str
    """The name of the row, for tests and for people who read the table."""
    advice: str
    """A template for `str.format`: {host}, {local_rank}, {pid}, and the named groups of the pattern."""
    pattern: str | None = None
    """A regular expression as text, compiled at the first failure and not at each start; None matches any text.

    It is searched for in the exception and the node's message, and in the last lines if there was no exception.
    """
    anywhere: bool = False
    """Whether to search the last lines even if there was an exception: torch and NCCL write such texts beside it."""
    signals: frozenset[int] = frozenset()
    """The signals that may have ended the worker."""
    exit_codes: frozenset[int] = frozenset()
    """The exit codes that the worker may have."""
    alone: bool = False
    """Whether there are other nodes, none of which failed in this round."""
    early: bool = False
    """Whether another worker had exited with 0 before."""
    waits: bool = False
    """Whether the worker timed out waiting for others, so that the report names those that were behind."""
