"""Joins that arrive after one that their process sent later."""

from __future__ import annotations

from coordinatord.core.events import Connected, Event
from coordinatord.core.machine import Coordinator


class LateJoins:
    """Remembers the greatest age in the joins of each process."""

    def __init__(self) -> None:
        self._ages_s: dict[tuple[int, str, int], float] = {}
        """That age, keyed by (life of the coordinator, node, incarnation)."""

    def is_overtaken(self, event: Event, life: int, machine: Coordinator) -> bool:
        """Whether an event is a join that comes after a later one of its process, so that it has to be refused.

        A run that was opened in between has not received the later one.
        """
        if not isinstance(event, Connected) or event.join.age_s is None:
            return False
        join, run = event.join, machine.jobs.get(event.join.job)
        key, age_s = (life, join.node, join.incarnation), event.join.age_s
        self._ages_s[key] = max(age_s, self._ages_s.get(key, 0.0))
        member = None if run is None else run.members.get(join.node)
        return member is not None and member.incarnation == join.incarnation and age_s < self._ages_s[key]
