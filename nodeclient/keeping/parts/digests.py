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
from functools import lru_cache
from weakref import WeakKeyDictionary

from workerlib.contract.arena import CHOSEN, Commit, Place
from workerlib.contract.manifest import BYTES_MARK, ManifestError, Piece, read_layout

CHUNK_BYTES = 4 << 20
"""The bytes of which a digest is computed at a time."""

_CRC_POLYNOMIAL, _CRC_ONE = 0xEDB88320, 1 << 31
"""The polynomial of crc32 and the polynomial 1: each bit is a coefficient, the highest bit the constant term."""


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


def digests_of(data: memoryview, crc32: Callable[[memoryview | bytes, int], int]) -> tuple[int, int]:
    """Return a crc32 of all data of a place, and one of its tensors and their names, which ignores their order.

    The first one shows damage. The second one is compared between ranks that should have the same state. The data are
    read only once, since a gigabyte takes a second. `crc32` is zlib's or does the same. Raises `ManifestError`.
    """
    layout = read_layout(data)
    whole, end = 0, 0
    crcs: list[tuple[Piece, int]] = []
    for piece, begin in zip(layout.pieces, layout.begins, strict=True):
        gap, end = data[end:begin], begin + piece.length
        crc = crc32(data[begin:end], 0)
        whole = _joined_crc32(crc32(gap, whole), crc, piece.length)
        if not piece.name.endswith(BYTES_MARK):  # no pickle: ranks may pickle equal values differently
            crcs.append((piece, crc))
    tensors = 0
    for piece, crc in sorted(crcs, key=lambda each: (each[0].name, each[0].offsets)):
        tensors = _joined_crc32(crc32(repr(piece).encode(), tensors), crc, piece.length)
    return crc32(data[end:], whole), tensors


def _joined_crc32(first: int, second: int, length: int) -> int:
    """Return the crc32 of two byte sequences in a row from the crc32 of each; `length` is that of the second one.

    This is zlib's `crc32_combine`, which Python has from 3.15 on.
    """
    return _product(_shift(length), first) ^ second


@lru_cache(maxsize=1_024)
def _shift(length: int) -> int:
    """Return the polynomial that a crc32 is multiplied by when `length` bytes follow: x to the power 8 * `length`."""
    power, square = _CRC_ONE, _CRC_ONE >> 8  # 1, and x**8 for one byte
    while length:
        if length & 1:
            power = _product(power, square)
        square, length = _product(square, square), length >> 1
    return power


def _product(one: int, other: int) -> int:
    """Return the product of two polynomials over bits, modulo that of crc32."""
    product = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            product ^= other
        other = other >> 1 ^ (_CRC_POLYNOMIAL if other & 1 else 0)
    return product
