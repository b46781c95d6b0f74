"""A rule of the house style: which files it concerns, how it is checked, and what to do where it is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.support.source import Source

Finding = tuple[int, str]
"""A line, and what is wrong there."""

Check = Callable[[Source], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule of the house: which files it concerns, what breaks it, and the remedy."""

    name: str
    concerns: Callable[[Source], bool]
    findings: Check
    remedy: str

    def judge(self, source: Source) -> list[str]:
        """Write a line for each finding in a file; none if the rule does not concern it."""
        if not self.concerns(source):
            return []
        return [f"{source.path}:{line}: {problem}" for line, problem in sorted(self.findings(source))]
