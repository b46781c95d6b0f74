"""The sections that workers of a round are in, such as an evaluation, each with a limit that its script has set."""

from __future__ import annotations

import math

from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.section import Section


@frozen
class OpenSection:
    """The section of the workers of one node."""

    section: Section
    began_at: float

    @property
    def ends_at(self) -> float:
        """When its time is up."""
        return self.began_at + self.section.limit_s


class Sections:
    """The sections of one round, by the reports of its nodes."""

    def __init__(self) -> None:
        self._open: dict[int, OpenSection] = {}
        """The sections by group rank."""
        self.ended_at = -math.inf
        """When the last section that is over ended."""

    def note(self, group_rank: int, section: Section | None, heard_at: float) -> None:
        """Take in the report of a node."""
        if section is not None:
            self._open[group_rank] = OpenSection(section, heard_at - section.age_s)
        elif self._open and self._open.pop(group_rank, None) is not None:
            self.ended_at = heard_at

    @property
    def longest(self) -> OpenSection | None:
        """The open section that may go on for the longest; None if there is none, as with most heartbeats."""
        return max(self._open.values(), key=lambda section: section.ends_at) if self._open else None
