"""Whether what is kept is still what was saved: a CRC of each place of an arena.

To work one out takes a second for each gigabyte, so all of this is for threads.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from workerlib.keep.arena import Commit, Place


def note_digests(places: Iterable[Place]) -> None:
    """Note the digest of each place that is whole and has none yet."""
    for place in places:
        commit = place.read()
        if commit is not None and place.digest(commit) is None:
            _note(place, commit)


def is_as_saved(place: Place, commit: Commit) -> bool:
    """Whether a place still holds what was saved with this commit.

    Where its digest is not known yet, there is nothing to compare: it is noted now.
    """
    known = place.digest(commit)
    if known is None:
        return _note(place, commit)
    return zlib.crc32(place.data[: commit.length]) == known and place.read() == commit


def withdraw(place: Place, commit: Commit) -> bool:
    """Empty a place that still has this commit, since its data cannot be trusted; return whether it did have it."""
    if place.read() != commit:
        return False
    place.begin()
    return True


def _note(place: Place, commit: Commit) -> bool:
    """Note the digest of a commit unless its place is overwritten meanwhile; return whether it was noted."""
    crc = zlib.crc32(place.data[: commit.length])
    whole = place.read() == commit
    if whole:
        place.note_digest(commit, crc)
    return whole
