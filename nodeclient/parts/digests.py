"""Whether what is kept is still what was saved: a CRC of each place of an arena.

To work one out takes a second for each gigabyte, so threads do it, and never two of them for the same place: when a
round has ended, digests are noted while the next one wants to know whether all is well.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from concurrent.futures import Executor, Future

from workerlib.keep.arena import Commit, Place


class Digests:
    """Notes and compares digests; all methods are for one thread, and the work is for `threads`."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._noting: dict[tuple[int, Commit], Future[bool]] = {}
        """The work in progress, by the identity of the place and what it holds."""

    def note(self, places: Iterable[Place]) -> None:
        """Note the digest of each place that is whole and has none yet."""
        for place in places:
            commit = place.read()
            if commit is not None and place.digest(commit) is None:
                self._noted(place, commit)

    def check(self, place: Place, commit: Commit) -> Future[bool]:
        """Find out whether a place still holds what was saved with this commit.

        Where its digest is not known yet, there is nothing to compare: it is noted now.
        """
        known = place.digest(commit)
        if known is None:
            return self._noted(place, commit)
        return self._threads.submit(_is_as_saved, place, commit, known)

    def _noted(self, place: Place, commit: Commit) -> Future[bool]:
        self._noting = {key: work for key, work in self._noting.items() if not work.done()}
        key = (id(place), commit)
        if key not in self._noting:
            self._noting[key] = self._threads.submit(_note, place, commit)
        return self._noting[key]


def withdraw(place: Place, commit: Commit) -> bool:
    """Empty a place that still has this commit, since its data cannot be trusted; return whether it did have it."""
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
