"""Defines a row of the tables of known causes, which are in `launch`, `network` and `resource`. Pure.

To add a cause, add a row there, and a real message of it to the test. A row must match only its own cause: an
ordinary exception of the script gets no hint.
"""

from __future__ import annotations

from msgspec import Struct

from coordinatord.protocol.messages import Cause


class HintRule(Struct, frozen=True):
    """One known cause. It matches a failure if all given conditions hold."""

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
    """The row matches only workers that one of these signals has ended; any worker if empty."""
    exit_codes: frozenset[int] = frozenset()
    """The row matches only workers with one of these exit codes; any worker if empty."""
    alone: bool = False
    """Whether the row matches only if there are other nodes, none of which failed in this round."""
    early: bool = False
    """Whether the row matches only if another worker had exited with 0 before."""
    waits: bool = False
    """Whether a worker with this cause timed out waiting for others. The report then names those that were behind."""
