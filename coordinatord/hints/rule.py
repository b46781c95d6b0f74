"""What a well-known cause of a failure is; the causes themselves are in the modules whose names end in `_causes`. Pure.

To add one, add a row there and its true message to the test. A row must not speak where it is not sure: an ordinary
exception of the script gets no hint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HintRule:
    """One cause: all that is given must be so."""

    name: str
    advice: str
    """For `str.format`: {host}, {local_rank}, {pid}, and the named groups of the pattern."""
    pattern: re.Pattern[str] | None = None
    """Found in the exception and in what the node found out, or, if there was no exception, in the last lines."""
    anywhere: bool = False
    """The pattern may also stand beside an exception, in the last lines."""
    signals: frozenset[int] = frozenset()
    """One of these ended the worker."""
    exit_codes: frozenset[int] = frozenset()
    alone: bool = False
    """There are other nodes, and none of them failed in this round."""
    early: bool = False
    """Another worker had exited with 0 before."""
    waits: bool = False
    """The worker waited for others that did not come in time: it is worth knowing who was behind."""
