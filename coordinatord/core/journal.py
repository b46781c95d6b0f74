"""Persist, then speak: holds decisions that are not yet durable, and the effects that wait for them.

Nobody learns anything that a crash could forget. Records are written in groups: all that come while one group is being
written go into the next. The effects of a group wait for it. So do effects of later decisions, which rest on the state
that these records led to. The driver writes, and knows how long that takes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from coordinatord.core.effects import Batch, Effect
from coordinatord.core.values.records import Record

ONE_TIME_S = 0.05
"""Decisions within this time share a commit, and count as made at the same time. Decisions that wait for a failing disk
must not: after a restart, times are counted from when they were made."""


@dataclass(slots=True)
class CommitBatch:
    """Records that become durable together, and the effects that may happen then."""

    records: list[Record] = field(default_factory=list)
    at: float = 0.0
    """When they were decided: writing may take long, and must not change how long ago that was."""
    effects: dict[int, Effect] = field(default_factory=dict)
    """The effects by session: a newer message replaces an older one, so that there are never more than sessions."""

    def hold(self, batch: Batch) -> None:
        """Make a batch wait for this group."""
        self.records += batch.records
        for effect in batch.effects:
            self.effects.pop(effect.session, None)
            self.effects[effect.session] = effect


class Journal:
    """The gate between the machine and the world."""

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
        """When the records that are being written were decided, by the coordinator's clock."""
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
