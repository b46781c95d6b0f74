"""Persist, then send: holds each effect back until the records that it rests on are durable.

So no node acts on a decision that a crash could undo. Records are written in groups: all that come while one group is
being written go into the next, until that is full. The effects of a group wait for its records. So do effects that were
decided later, since they rest on the state to which these records led. Only a message that repeats the last one of its
session need not wait. Most answers to heartbeats are repeats, so the joins of a thousand other nodes do not delay
them. The driver writes the records.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from coordinatord.core.rounds.effects import Batch, Effect
from coordinatord.core.rounds.values.records import Record

Decided = tuple[float, Record]
"""The time of a decision in the coordinator's clock, and its record, which may be written much later."""

GROUP_RECORDS = 1_000
"""A group of so many records is full. That many joins are written within a tenth of a second, in SQLite as in etcd. Ten
thousand took two seconds, in which the store seemed not to answer."""


@dataclass(slots=True)
class CommitGroup:
    """A group of records that become durable together, and the effects that wait for them."""

    records: list[Decided] = field(default_factory=list)
    effects: dict[int, Effect] = field(default_factory=dict)
    """The newest effect of each session, so that there are never more of them than sessions."""

    def hold(self, batch: Batch, now: float) -> None:
        """Add the records of a batch that was decided at `now`, and let its effects wait for the group."""
        self.records += ((now, record) for record in batch.records)
        for effect in batch.effects:
            self.effects.pop(effect.session, None)
            self.effects[effect.session] = effect


class Journal:
    """The groups of records that are not durable yet."""

    def __init__(self) -> None:
        self._writing: CommitGroup | None = None
        """The group that is being written; None if none is."""
        self._waiting: deque[CommitGroup] = deque()
        """The groups to write after `_writing`, in order."""

    def take(self, batch: Batch, now: float) -> tuple[Effect, ...]:
        """Record the batch of one event at `now`; return the effects to carry out at once.

        The records of one event are in one group, since only together they make sense after a crash.
        """
        if batch.records and (not self._waiting or len(self._waiting[-1].records) >= GROUP_RECORDS):
            self._waiting.append(CommitGroup())
        last = self._waiting[-1] if self._waiting else self._writing
        if batch.at_once or last is None:
            return batch.effects
        if batch.repeats:
            return () if self._replace(batch) else batch.effects
        last.hold(batch, now)
        return ()

    def _replace(self, batch: Batch) -> bool:
        """Put each message in place of the last one that waits for its session; return whether any one waits.

        An earlier message that waits for the session rests on fewer records, and stays as it is.
        """
        replaced = False
        for effect in batch.effects:
            holding = [group for group in (self._writing, *self._waiting) if group and effect.session in group.effects]
            if holding:
                holding[-1].effects[effect.session] = effect
                replaced = True
        return replaced

    def begin(self) -> tuple[Decided, ...]:
        """Return the records to write next; none if a group is being written, or there is nothing to write."""
        if self._writing is not None or not self._waiting:
            return ()
        self._writing = self._waiting.popleft()
        return tuple(self._writing.records)

    def finish(self) -> tuple[Effect, ...]:
        """Finish the group from `begin`, which is durable now; return the effects to carry out."""
        group, self._writing = self._writing, None
        assert group is not None  # noqa: S101 - there is one between `begin` and `finish`
        return tuple(group.effects.values())
