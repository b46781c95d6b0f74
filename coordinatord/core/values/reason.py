"""Why something is done: a word for programs and a sentence for people, which go everywhere together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """The condition that held, and what it came to in this case."""

    condition: str
    """One of `conditions.NAMES`; where no row of the table was taken, what an operator asked for."""
    words: str
    """The row's sentence, with the names and numbers of this case."""
