"""A heap of deadlines that can be put off in O(1), as each heartbeat puts off the end of a lease."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SLACK = 64
"""The heap is made anew once it has more entries than this number and two for each key. So that hardly ever
happens to a small heap."""


class DeadlineHeap(Generic[Key]):
    """A deadline for each key, in seconds of the caller's clock.

    A key that is put off keeps its old entry in the heap. The entry is corrected when it comes to the top. So each key
    has an entry at its deadline or before it, and perhaps others that no longer count.

    All deadlines can be moved together in O(1), as after a sleep of the coordinator: they are stored minus `_shift`.
    """

    def __init__(self) -> None:
        self._at: dict[Key, float] = {}
        """The deadline of each key, minus `_shift`."""
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0
        """How many entries were ever made. It orders those of the same time, so that keys are never compared."""
        self._shift = 0.0
        """The seconds by which all deadlines were moved together."""

    def set(self, key: Key, at: float) -> None:
        """Set the deadline of `key`."""
        at -= self._shift
        known = self._at.get(key)
        self._at[key] = at
        if known is None or at < known:
            heapq.heappush(self._heap, self._entry(key, at))
            if len(self._heap) > 2 * len(self._at) + SLACK:
                self._heap = [self._entry(key, at) for key, at in self._at.items()]
                heapq.heapify(self._heap)

    def discard(self, key: Key) -> None:
        """Remove the deadline of `key`, if it has one."""
        self._at.pop(key, None)

    def clear(self) -> None:
        """Remove all deadlines."""
        self._at.clear()
        self._heap.clear()

    def get(self, key: Key) -> float | None:
        """Return the deadline of `key`, or None."""
        at = self._at.get(key)
        return None if at is None else at + self._shift

    def shift(self, by: float) -> None:
        """Move every deadline by `by` seconds, in O(1)."""
        self._shift += by

    @property
    def first(self) -> float | None:
        """The first deadline; None if there is none."""
        key = self.first_key
        return None if key is None else self.get(key)

    @property
    def first_key(self) -> Key | None:
        """The key with the first deadline; None if there is none. Entries that no longer count are corrected here."""
        while self._heap:
            entered, _, key = self._heap[0]
            at = self._at.get(key)
            if at is None:
                heapq.heappop(self._heap)
            elif at > entered:
                heapq.heapreplace(self._heap, self._entry(key, at))
            else:
                return key
        return None

    def pop_due(self, now: float) -> list[Key]:
        """Remove and return the keys whose deadline is not after `now`, in the order of their deadlines."""
        due = []
        while (first := self.first) is not None and first <= now:
            _, _, key = heapq.heappop(self._heap)  # `first` has left the right entry at the top
            del self._at[key]
            due.append(key)
        return due

    def _entry(self, key: Key, at: float) -> tuple[float, int, Key]:
        self._count += 1
        return at, self._count, key
