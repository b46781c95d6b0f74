"""The form of a well-known cause of a failure; the causes are in `launch`, `network` and `resource`. Pure.

To add one, add a row there, and a real message of it to the test. A row must be certain: an ordinary exception of the
script gets no hint.
"""

from __future__ import annotations

from msgspec import Struct


class HintRule(Struct, frozen=True):
    """One cause: all its conditions must hold."""

    name: str
    advice: str
    """A text for `str.format`: {host}, {local_rank}, {pid}, and the named groups of the pattern."""
    pattern: str | None = None
    """A regular expression, as a text: it is compiled at the first failure, and not at each start.

    It is searched for in the exception and the node's message, and in the last lines if there was no exception.
    """
    anywhere: bool = False
    """The pattern is searched for in the last lines even if there was an exception."""
    signals: frozenset[int] = frozenset()
    """One of these ended the worker."""
    exit_codes: frozenset[int] = frozenset()
    """The worker exited with one of these."""
    alone: bool = False
    """There are other nodes, and none of them failed in this round."""
    early: bool = False
    """Another worker had exited with 0 before."""
    waits: bool = False
    """The worker waited for others that did not come in time, so the report names those that were behind."""
