"""Whether what is kept is still what was saved: a CRC-32 of each place of an arena.

To compute one takes a second for each gigabyte, so threads do it. Never do two of them compute the first digest of a
place: when a round has ended, digests are noted while the next round checks its parts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from concurrent.futures import Executor, Future

from workerlib.keep.arena import Commit, Place


class Digests:
    """Notes and compares digests. All methods are for one thread; `threads` do the work."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._noting: dict[tuple[int, Commit], Future[bool]] = {}
        """The computations in progress, by the identity of the place and what it holds."""

    def note(self, places: Iterable[Place]) -> None:
        """Note the digest of each place that is whole and has none yet."""
        for place in places:
            commit = place.read()
            if commit is not None and place.digest(commit) is None:
                self._begin_to_note(place, commit)

    def check(self, place: Place, commit: Commit) -> Future[bool]:
        """Return whether a place still holds what was saved with this commit, as a future.

        Where its digest is not known yet, there is nothing to compare, and the digest is noted now.
        """
        known = place.digest(commit)
        if known is None:
            return self._begin_to_note(place, commit)
        return self._threads.submit(_is_as_saved, place, commit, known)

    def _begin_to_note(self, place: Place, commit: Commit) -> Future[bool]:
        self._noting = {key: noted for key, noted in self._noting.items() if not noted.done()}
        key = (id(place), commit)
        if key not in self._noting:
            self._noting[key] = self._threads.submit(_note, place, commit)
        return self._noting[key]


def withdraw(place: Place, commit: Commit) -> bool:
    """Empty a place if it still has this commit, whose data cannot be trusted; return whether it did."""
    if place.read() != commit:
        return False
    place.begin()
    return True


def _is_as_saved(place: Place, commit: Commit, known: int) -> bool:
    return zlib.crc32(place.data[: commit.length]) == known and place.read() == commit


def _note(place: Place, commit: Commit) -> bool:
    """Note the digest of a commit unless its place is overwritten meanwhile; return whether it was noted."""
    crc = zlib.crc32(place.data[: commit.length])
    whole = place.read() == commit
    if whole:
        place.note_digest(commit, crc)
    return whole
