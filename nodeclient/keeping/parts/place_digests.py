"""Computes the two digests of a place of an arena in one pass over its data."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from workerlib.contract.manifest import BYTES_MARK, Piece, read_layout

_CRC_POLYNOMIAL, _CRC_ONE = 0xEDB88320, 1 << 31
"""The polynomial of crc32 and the polynomial 1: each bit is a coefficient, the highest bit the constant term."""


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
