"""Persist, then send: holds each effect back until the records that it rests on are durable.

So no node acts on a decision that a crash could undo. Records are written in groups: those that come while one group is
being written go into the next one, until that is full. The effects of a group wait for its records. Later effects wait
as well, since they rest on the state to which the records led. There are two exceptions. Effects that rest on no record
never wait (`Batch.at_once`). A message that repeats the last one of its session waits only if that one still waits, and
then replaces it, since it may grant another lease. Most answers to heartbeats are repeats, so a thousand joins do not
delay them.

The journal writes nothing. Its caller, the driver, calls `add` for each event, `begin` for the next records to write,
and `finish` when these are durable.
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
    """The newest effect of each session, so that there are never more of them than sessions. Earlier ones need not be
    carried out: each message has the whole desired state."""

    def add(self, batch: Batch, now: float) -> None:
        """Add the records and effects of a batch that was decided at `now`."""
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
        self.groups = 0
        """The number of groups so far."""
        self.durable_groups = 0
        """The number of groups that are durable."""

    def add(self, batch: Batch, now: float) -> tuple[Effect, ...]:
        """Add the batch of one event at `now`; return the effects that wait for nothing.

        The records of one event stay in one group, since only all of them together make sense after a crash.
        """
        if batch.records and (not self._waiting or len(self._waiting[-1].records) >= GROUP_RECORDS):
            self._waiting.append(CommitGroup())
            self.groups += 1
        last = self._waiting[-1] if self._waiting else self._writing
        if batch.at_once or last is None:
            return batch.effects
        if batch.repeats:
            return () if self._replace(*batch.effects) else batch.effects
        last.add(batch, now)
        return ()

    def _replace(self, effect: Effect) -> bool:
        """Replace the last waiting message of a session; return whether there was one.

        Earlier messages to the session rest on fewer records, and stay as they are.
        """
        groups = [group for group in (self._writing, *self._waiting) if group and effect.session in group.effects]
        if groups:
            groups[-1].effects[effect.session] = effect
        return bool(groups)

    def begin(self) -> tuple[Decided, ...]:
        """Begin to write the next group; return its records, or none if one is being written or there is none."""
        if self._writing is not None or not self._waiting:
            return ()
        self._writing = self._waiting.popleft()
        return tuple(self._writing.records)

    def finish(self) -> tuple[Effect, ...]:
        """Finish the group from `begin`, which is durable now; return the effects that waited for it."""
        group, self._writing = self._writing, None
        assert group is not None  # noqa: S101 - there is one between `begin` and `finish`
        self.durable_groups += 1
        return tuple(group.effects.values())
