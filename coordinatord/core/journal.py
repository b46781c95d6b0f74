"""Persist, then speak: what has been decided but is not yet durable, and what may be said meanwhile.

Nobody learns anything that a crash could forget. Records are written in groups: all that comes while one group is being
written goes into the next. What is to be said of a group waits for it, and what was decided later, on the state that
these records led to, waits as well. Only what a session has been told already may be told again meanwhile: most answers
to heartbeats are that, and they do not wait for the joins of a thousand other nodes. Who writes, and how long that
takes, is the driver's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinatord.core.effects import Batch, Effect
from coordinatord.core.values.records import Record

Decided = tuple[float, Record]
"""A record, and when it was decided in the coordinator's clock: to be written may take long."""


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
        self._next: CommitBatch | None = None

    def take(self, batch: Batch, now: float) -> tuple[Effect, ...]:
        """Take in what one event led to at `now`; return the effects that may happen at once."""
        if batch.records and self._next is None:
            self._next = CommitBatch()
        last = self._next or self._writing
        if batch.hurry or last is None:
            return batch.effects
        if batch.repeats:
            return () if self._holds(batch) else batch.effects
        last.hold(batch, now)
        return ()

    def _holds(self, batch: Batch) -> bool:
        """Whether anything waits to be said to a session of this batch."""
        groups = [group.effects for group in (self._writing, self._next) if group is not None]
        return any(effect.session in effects for effect in batch.effects for effects in groups)

    def begin(self) -> tuple[Decided, ...]:
        """Return the records to write next; none if a group is being written, or there is nothing to write."""
        if self._writing is not None or self._next is None:
            return ()
        self._writing, self._next = self._next, None
        return tuple(self._writing.records)

    def finish(self) -> tuple[Effect, ...]:
        """Note that the group which `begin` gave is durable; return the effects that may happen now."""
        group, self._writing = self._writing, None
        assert group is not None  # noqa: S101 - there is one between `begin` and `finish`
        return tuple(group.effects.values())
