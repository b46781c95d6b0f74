"""Digests of kept state, so that nobody resumes from a state that is damaged, or that differs between ranks.

The place of a part in an arena has a CRC-32 of its bytes, which shows damage. A *shared* state, which several ranks
have alike, gets a further digest of its tensors, by which the coordinator compares these ranks. A digest takes a second
for each gigabyte, so threads compute it. The first digest of a place is computed once, although the end of a round and
the checks of the next one may both request it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Executor, Future
from weakref import WeakKeyDictionary

from nodeclient.keeping.parts.place_digests import digests_of
from workerlib.contract.arena import CHOSEN, Commit, Place
from workerlib.contract.manifest import ManifestError

CHUNK_BYTES = 4 << 20
"""The bytes of which a digest is computed at a time."""


class Digests:
    """Computes and compares digests in `threads`. All public methods are for one thread."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._computing: dict[tuple[int, Commit], Future[bool]] = {}
        """The computations in progress, by the id of the place object and its commit."""
        self._of_tensors: WeakKeyDictionary[Place, tuple[Commit, int | None]] = WeakKeyDictionary()
        """The digest of the tensors in each place of a shared state, with the commit that it is of. The threads set
        whole entries, and nothing reads more than one, so there is no lock."""
        self._is_closed = False

    def close(self) -> None:
        """End all computations with `CancelledError`: the process would wait for their threads before it exits."""
        self._is_closed = True

    def of_tensors(self, place: Place, commit: Commit) -> int | None:
        """Return the digest of the tensors of a shared state; None if it is not known yet."""
        known, digest = self._of_tensors.get(place, (None, None))
        return digest if known == commit else None

    def compute(self, places: Iterable[Place]) -> list[Future[bool]]:
        """Begin to compute the missing digests of whole places; return the computations for shared states.

        A report waits for those: the coordinator compares the states before it forms a round.
        """
        computing = []
        for place in places:
            commit = place.read()
            if commit is None:
                continue
            if is_comparable(commit) and self.of_tensors(place, commit) is None:
                computing.append(self._begin(place, commit))
            elif place.digest(commit) is None:
                self._begin(place, commit)
        return computing

    def check(self, place: Place, commit: Commit) -> Future[bool]:
        """Return, as a future, whether the bytes of a place are still those that were saved with this commit.

        If its digest is not known yet, there is nothing to compare, and the digest is computed.
        """
        known = place.digest(commit)
        if known is None:
            return self._begin(place, commit)
        return self._threads.submit(self._is_as_saved, place, commit, known)

    def _begin(self, place: Place, commit: Commit) -> Future[bool]:
        self._computing = {key: each for key, each in self._computing.items() if not each.done()}
        key = (id(place), commit)
        if key not in self._computing:
            self._computing[key] = self._threads.submit(self._compute, place, commit)
        return self._computing[key]

    def _compute(self, place: Place, commit: Commit) -> bool:
        """Compute the digests of a commit; return False if its place was overwritten meanwhile."""
        data, known, of_tensors = place.data[: commit.length], place.digest(commit), None
        try:
            crc, of_tensors = digests_of(data, self._crc32) if is_comparable(commit) else (self._crc32(data), None)
        except ManifestError:  # the node that resumes from it reports that
            # A shared part is reported only with this digest, so there has to be one.
            crc = of_tensors = self._crc32(data)
        whole = place.still_has(commit)
        if whole:
            place.store_digest(commit, crc if known is None else known)  # a known one stays, for `check`
            self._of_tensors[place] = commit, of_tensors
        return whole

    def _is_as_saved(self, place: Place, commit: Commit, known: int) -> bool:
        return self._crc32(place.data[: commit.length]) == known and place.still_has(commit)

    def _crc32(self, data: memoryview | bytes, crc: int = 0) -> int:
        return crc32_in_chunks(data, self._go_on, crc)

    def _go_on(self, _: int) -> None:
        if self._is_closed:
            raise CancelledError


def crc32_in_chunks(data: memoryview | bytes, count: Callable[[int], None], crc: int = 0) -> int:
    """Return the crc32 of data that follow others with the crc32 `crc`.

    `count` is called with the size of each chunk that was read, and may raise to end this: a large part takes a minute.
    """
    for begin in range(0, len(data), CHUNK_BYTES):
        chunk = data[begin : begin + CHUNK_BYTES]
        crc = zlib.crc32(chunk, crc)
        count(len(chunk))
    return crc


def is_comparable(commit: Commit) -> bool:
    """Whether a part is of a shared state: several ranks have its shard of the big state, with the same bits.

    With `CHOSEN`, these ranks may differ in a model's buffers.
    """
    return commit.shards < commit.world_size and not commit.flags & CHOSEN


def withdraw(place: Place, commit: Commit) -> bool:
    """Empty a place if it still has this damaged commit; return whether it had."""
    if place.read() != commit:
        return False
    place.invalidate()
    return True
