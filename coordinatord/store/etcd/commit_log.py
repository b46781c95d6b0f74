"""Tracks which values in etcd have which rows, and decides which values to merge.

A row is a record, as in the database. A commit is one value: the rows that it adds, and the numbers of earlier rows
that it drops. So a commit neither reads nor changes earlier values. The history consists of all rows that no value
drops. Dropped rows still take space. Once there are more of them than *live* rows, adjacent values are merged, some
after each commit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec import Struct, json

from coordinatord.protocol.schema import ERRORS
from coordinatord.store.interface import UnreadableStoreError
from coordinatord.store.row_codec import Row

WASTE_ROWS = 1_000
"""Values are merged once there are this many more dropped rows than live rows. So a short history is not merged again
and again."""

MERGED_VALUES_MAX = 64
"""The most values that are merged at once, which delays a commit by some milliseconds."""

MERGED_BYTES_MAX = 256 * 1024
"""The most stored bytes of the values that are merged at once, in one transaction of etcd, of at most 1.5 MiB."""

UNPACKED_BYTES_MAX = 256 * 1024 * 1024
"""The most bytes of an unpacked value, lest a damaged one fill the memory: a commit of 10,000 nodes has 10 MB."""


class CommitValue(Struct, frozen=True):
    """The content of one value in etcd."""

    rows: tuple[Row, ...]
    dropped: tuple[int, ...]
    """The numbers of the rows of earlier values that it drops."""


@dataclass(slots=True)
class _Stored:
    """One value in etcd, without its rows."""

    size: int
    seqs: list[int]
    """The numbers of its rows, including those that were dropped later."""
    dropped: list[int] = field(default_factory=list)


class Merger(Struct, frozen=True):
    """Adjacent values to merge into one."""

    first: int
    """The number of the first value."""
    last: int
    """The number of the last value; the merged value has the same number."""
    rows: tuple[int, ...]
    """The numbers of their rows that are not dropped."""
    dropped: tuple[int, ...]
    """The numbers of rows of other values that they drop, and that still take space there."""


class CommitLog:
    """All values, by number."""

    def __init__(self) -> None:
        self._values: dict[int, _Stored] = {}
        self._live: dict[int, int] = {}
        """The live rows, each with the number of the value that has it."""
        self._dead: dict[int, int] = {}
        """The dropped rows that still take space, each with the number of the value that has it."""
        self._last_merged = 0
        """The last value that was merged: the next ones are taken after it, so that all values have their turn."""
        self._merging: list[int] = []
        """The values of a merger whose end is not known."""

    @property
    def size(self) -> int:
        """How many bytes all values have."""
        return sum(value.size for value in self._values.values())

    def add(self, number: int, size: int, seqs: Iterable[int], dropped: Iterable[int]) -> None:
        """Record a value that is newer than all others."""
        self._values[number] = value = _Stored(size, list(seqs))
        self._live.update(dict.fromkeys(value.seqs, number))
        for seq in dropped:
            value_number = self._live.pop(seq, None)
            if value_number is not None:  # else a merger has left the row out, and only this value still names it
                self._dead[seq] = value_number
                value.dropped.append(seq)

    def next_merger(self) -> Merger | None:
        """Return the next values to merge; None while few rows are dropped.

        Until `merge` or `drop_merger` is called, they are the same ones again. A merger whose request failed may have
        been written: then its last value has the rows of all its values. A merger of other values might delete these
        rows.
        """
        if len(self._dead) <= len(self._live) + WASTE_ROWS:
            return None
        chosen = self._merging = self._merging or self._choose()
        values = [self._values[number] for number in chosen]
        rows = tuple(seq for value in values for seq in value.seqs if seq in self._live)
        dropped = tuple(
            seq for value in values for seq in value.dropped if seq in self._dead and self._dead[seq] not in chosen
        )
        return Merger(chosen[0], chosen[-1], rows, dropped)

    def _choose(self) -> list[int]:
        """Return the next adjacent values; a large one is merged by itself, and so loses its dropped rows."""
        candidates = [number for number in self._values if number > self._last_merged]
        if len(candidates) < MERGED_VALUES_MAX:
            candidates = list(self._values)  # from the beginning again; the last few wait until more have come
        chosen: list[int] = []
        size = 0
        for number in islice(candidates, MERGED_VALUES_MAX):
            size += self._values[number].size
            if chosen and size > MERGED_BYTES_MAX:
                break
            chosen.append(number)
        self._last_merged = chosen[-1]
        return chosen

    def drop_merger(self) -> None:
        """Record that the last merger was not written, and never will be."""
        self._merging = []

    def merge(self, merger: Merger, size: int) -> None:
        """Record that a merger was written as one value of `size` bytes; nothing was added since `next_merger`."""
        self._merging = []
        for number in [number for number in self._values if merger.first <= number <= merger.last]:
            for seq in self._values[number].seqs:
                self._dead.pop(seq, None)
            if number != merger.last:
                del self._values[number]
        self._values[merger.last] = _Stored(size, list(merger.rows), list(merger.dropped))
        self._live.update(dict.fromkeys(merger.rows, merger.last))


def pack(rows: Sequence[Row], dropped: Sequence[int]) -> bytes:
    """Return the value of a commit."""
    return zlib.compress(json.encode({"rows": rows, "dropped": dropped}), 1)


def unpack(value: bytes, number: int) -> CommitValue:
    """Parse a value. Raises `UnreadableStoreError`, which names the commit."""
    try:
        plain = zlib.decompressobj()
        text = plain.decompress(value, UNPACKED_BYTES_MAX)
        if not plain.eof:
            raise ValueError("it has no end")
        return json.decode(text, type=CommitValue)
    except (zlib.error, *ERRORS) as error:
        raise UnreadableStoreError(f"commit {number} is damaged ({error}): restore etcd from a snapshot") from error


def rows_of(values: Iterable[CommitValue]) -> Iterator[Row]:
    """Yield the rows of all values that no value drops, in the order of their numbers."""
    found: dict[int, Row] = {}
    gone: set[int] = set()
    for value in values:
        found.update({row[0]: row for row in value.rows})
        gone.update(value.dropped)
    return iter(sorted((row for seq, row in found.items() if seq not in gone), key=lambda row: row[0]))
