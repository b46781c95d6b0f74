"""Persist, then speak: what has been decided but is not yet durable, and what may be said meanwhile.

Nobody learns anything that a crash could forget. Records are written in groups: all that comes while one group is being
written goes into the next, until that has as many as are written at once. What is to be said of a group waits for it,
and what was decided later, on the state that these records led to, waits as well. Only what a session has been told
already may be told again meanwhile: most answers to heartbeats are that, and they do not wait for the joins of a
thousand other nodes. Who writes, and how long that takes, is the driver's business.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from coordinatord.core.effects import Batch, Effect
from coordinatord.core.values.records import Record

Decided = tuple[float, Record]
"""A record, and when it was decided in the coordinator's clock: to be written may take long."""

GROUP_RECORDS = 1_000
"""A group of so many records takes no more. That many joins are written within a tenth of a second, in SQLite as in
etcd; ten thousand took two seconds, in which a store that answers looked like one that does not."""


@dataclass(slots=True)
class CommitBatch:
    """Records that become durable together, and what may be said then."""

    records: list[Decided] = field(default_factory=list)
    effects: dict[int, Effect] = field(default_factory=dict)
    """The newest effect of each session, so that there are never more of them than sessions."""

    def hold(self, batch: Batch, now: float) -> None:
        """Let what was decided at `now` wait for this group."""
        self.records += ((now, record) for record in batch.records)
        for effect in batch.effects:
            self.effects.pop(effect.session, None)
            self.effects[effect.session] = effect


class Journal:
    """Stands between the machine and the world."""

    def __init__(self) -> None:
        self._writing: CommitBatch | None = None
        self._waiting: deque[CommitBatch] = deque()
        """The groups to write after that one, in order."""

    def take(self, batch: Batch, now: float) -> tuple[Effect, ...]:
        """Take in what one event led to at `now`; return the effects that may happen at once.

        The records of one event are in one group, since only together they make sense after a crash.
        """
        if batch.records and (not self._waiting or len(self._waiting[-1].records) >= GROUP_RECORDS):
            self._waiting.append(CommitBatch())
        last = self._waiting[-1] if self._waiting else self._writing
        if batch.hurry or last is None:
            return batch.effects
        if batch.repeats:
            return () if self._renews(batch) else batch.effects
        last.hold(batch, now)
        return ()

    def _renews(self, batch: Batch) -> bool:
        """Put what repeats in the place of the last that waits for the same session; return whether anything does.

        What waited before that rests on fewer records, and stays as it is.
        """
        renewed = False
        for effect in batch.effects:
            holding = [group for group in (self._writing, *self._waiting) if group and effect.session in group.effects]
            if holding:
                holding[-1].effects[effect.session] = effect
                renewed = True
        return renewed

    def begin(self) -> tuple[Decided, ...]:
        """Return the records to write next; none if a group is being written, or there is nothing to write."""
        if self._writing is not None or not self._waiting:
            return ()
        self._writing = self._waiting.popleft()
        return tuple(self._writing.records)

    def finish(self) -> tuple[Effect, ...]:
        """Note that the group which `begin` gave is durable; return the effects that may happen now."""
        group, self._writing = self._writing, None
        assert group is not None  # noqa: S101 - there is one between `begin` and `finish`
        return tuple(group.effects.values())
