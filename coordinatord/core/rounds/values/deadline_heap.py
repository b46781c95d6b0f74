"""A heap of deadlines that can be moved in O(1), as each heartbeat moves the end of a lease.

A moved deadline keeps its old entry in the heap, which is corrected when the old time comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


SLACK = 64
"""Dead entries are removed when the heap has twice as many entries as there are keys, and so many more."""

AHEAD_S = 0.1
"""How far ahead the heap is corrected when something may be due. With 4,000 heartbeats a second, 800 old times come in
each second: they are corrected in ten batches, not one by one."""


class DeadlineHeap(Generic[Key]):
    """A deadline for each key, in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._at: dict[Key, float] = {}
        """The deadline of each key, minus `_shift`."""
        self._heap: list[tuple[float, int, Key]] = []
        self._filed: dict[Key, float] = {}
        """The time of each key's first entry in the heap; its other entries are dead."""
        self._count = 0
        """How many entries were ever added."""
        self._shift = 0.0
        """The seconds by which all deadlines were moved together."""

    def set(self, key: Key, at: float) -> None:
        """Set the deadline of `key`."""
        at -= self._shift
        self._at[key] = at
        filed = self._filed.get(key)
        if filed is None or at < filed:
            self._file(key, at)

    def discard(self, key: Key) -> None:
        """Remove the deadline of `key`, if it has one."""
        self._at.pop(key, None)
        self._compact()

    def clear(self) -> None:
        """Remove all deadlines."""
        self._at.clear()
        self._heap.clear()
        self._filed.clear()

    def get(self, key: Key) -> float | None:
        """Return the deadline of `key`, or None."""
        at = self._at.get(key)
        return None if at is None else at + self._shift

    def shift(self, by: float) -> None:
        """Move every deadline by `by` seconds, in O(1)."""
        self._shift += by

    def next(self) -> float | None:
        """Return a time before which nothing is due; None without deadlines. The first deadline may be later by now."""
        while self._heap:
            filed, _, key = self._heap[0]
            is_current = self._filed.get(key) == filed
            if is_current and key in self._at:
                return filed + self._shift
            heapq.heappop(self._heap)  # dead
            if is_current:
                del self._filed[key]
        return None

    def settle(self) -> None:
        """Correct the heap until the first deadline is at its top, so that `first` takes O(1)."""
        while self.next() is not None and self._at[self._heap[0][2]] > self._heap[0][0]:
            _, _, key = heapq.heappop(self._heap)
            self._file(key, self._at[key])

    @property
    def first(self) -> float | None:
        """The first deadline; None if there is none. Unlike `next` it is exact, and may take O(n)."""
        if not self._at:
            return None
        filed, _, key = self._heap[0]
        return (filed if self._at.get(key) == filed else min(self._at.values())) + self._shift

    def pop_due(self, now: float) -> list[Key]:
        """Remove and return the keys whose deadline is not after `now`, in the order of their deadlines."""
        due, soon = [], []
        while self._heap and self._heap[0][0] + self._shift <= now + AHEAD_S:
            entry = heapq.heappop(self._heap)
            filed, _, key = entry
            if self._filed.get(key) != filed:
                continue
            at = self._at.get(key)
            if at is not None and at <= filed and filed + self._shift > now:
                soon.append(entry)  # it is correct, but not due yet
                continue
            del self._filed[key]
            if at is None:
                continue
            if at > filed:
                self._file(key, at)  # it was moved, and may still be due in this call
            else:
                del self._at[key]
                due.append(key)
        for entry in soon:
            heapq.heappush(self._heap, entry)
        return due

    def _file(self, key: Key, at: float) -> None:
        self._count += 1  # among equal times, the count decides, so keys are never compared
        self._filed[key] = at
        heapq.heappush(self._heap, (at, self._count, key))
        self._compact()

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._at) + SLACK:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)
            self._filed = {key: filed for filed, _, key in self._heap}

    def _is_live(self, entry: tuple[float, int, Key]) -> bool:
        filed, _, key = entry
        return key in self._at and self._filed.get(key) == filed
