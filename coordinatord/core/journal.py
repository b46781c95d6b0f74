"""Persist, then speak: what has been decided but is not yet durable, and what may be said meanwhile.

Nobody hears of anything that a crash could forget. Records are written in groups: all that comes while one group is
being written goes into the next. What is to be said of a group waits for it, and what was decided later, on the state
that these records led to, waits as well. Who writes, and how long that takes, is the driver's business.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from coordinatord.core.effects import Batch, Effect
from coordinatord.core.values.records import Record

ONE_TIME_S = 0.05
"""What was decided within this time shares a commit, and is said to have been decided at once. What waits for a disk
that is in trouble must not: after a restart, times are counted from when it was decided."""


@dataclass(slots=True)
class CommitBatch:
    """Records that become durable together, and what may be said then."""

    records: list[Record] = field(default_factory=list)
    at: float = 0.0
    """When they were decided: to be written may take long, and must not change how long ago that was."""
    effects: dict[int, Effect] = field(default_factory=dict)
    """By session: a newer word takes the place of an older one, so that there are never more than sessions."""

    def hold(self, batch: Batch) -> None:
        """Let a batch wait for this group."""
        self.records += batch.records
        for effect in batch.effects:
            self.effects.pop(effect.session, None)
            self.effects[effect.session] = effect


class Journal:
    """Stands between the machine and the world."""

    def __init__(self) -> None:
        self._writing: CommitBatch | None = None
        self._waiting: deque[CommitBatch] = deque()

    def take(self, batch: Batch, now: float) -> tuple[Effect, ...]:
        """Take in what one event led to at `now`; return the effects that may happen at once."""
        if batch.records and (not self._waiting or now - self._waiting[-1].at > ONE_TIME_S):
            self._waiting.append(CommitBatch(at=now))
        last = self._waiting[-1] if self._waiting else self._writing
        if batch.hurry or last is None:
            return batch.effects
        last.hold(batch)
        return ()

    @property
    def decided_at(self) -> float:
        """When the records that are being written were decided, in the coordinator's clock."""
        return self._writing.at if self._writing else 0.0

    def begin(self) -> tuple[Record, ...]:
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
