"""The manifest of a saved state: which tensors lie in the shared memory of a place, and where.

With a sharded model, each rank saves one *piece* of each tensor. So a manifest says which piece of the whole tensor it
is, and a reader merges the pieces of several ranks at any world size. A manifest is JSON at the beginning of a place of
an `arena`, and is rewritten only if names or sizes of tensors change. Standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from workerlib.contract.arena import ALIGNMENT

BYTES_MARK = "/bytes"
"""The suffix of the names of pickles. The tensors' digest omits them: ranks may pickle equal values differently."""

LENGTH_BYTES = 8
"""The size of the length in front of a manifest."""

_CRC_POLYNOMIAL, _CRC_ONE = 0xEDB88320, 1 << 31
"""The polynomial of crc32 and the polynomial 1: bits stand for coefficients, the highest one for the constant term."""

Shape = tuple[int, ...]


class ManifestError(ValueError):
    """The data of a place are malformed; the text says how."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a tensor: all of it, or the part of one rank."""

    name: str
    dtype: str
    """torch's name of the type of its elements, such as `float32`."""
    whole: Shape
    """The size of the whole tensor."""
    offsets: Shape
    """Where in the whole tensor this piece begins."""
    sizes: Shape
    length: int
    """The number of bytes."""
    strides: Shape = field(default=(), repr=False)
    """The strides of the whole tensor in memory; empty if contiguous. They are no part of a digest, which `digests_of`
    makes of the `repr`: equal tensors may have different strides."""

    @property
    def fields(self) -> list[object]:
        """The fields of its entry in a manifest."""
        fields = [self.name, self.dtype, self.whole, self.offsets, self.sizes, self.length]
        return [*fields, self.strides] if self.strides else fields

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the data of a place."""

    pieces: tuple[Piece, ...]
    begins: tuple[int, ...]
    """The byte at which each piece begins."""
    manifest: bytes
    """The first bytes of the place: the length of the JSON, and the JSON."""
    end: int
    """The byte at which the tensors end, and the JSON values begin."""


def lay_out(pieces: Iterable[Piece]) -> Layout:
    """Return the layout of these pieces in a place."""
    pieces = tuple(pieces)
    text = json.dumps({"tensors": [piece.fields for piece in pieces]}, separators=(",", ":")).encode()
    begins, end = _begins(LENGTH_BYTES + len(text), pieces)
    return Layout(pieces, begins, len(text).to_bytes(LENGTH_BYTES, "little") + text, end)


def read_layout(data: memoryview) -> Layout:
    """Return the layout of a place with these data. Raises `ManifestError`."""
    size = int.from_bytes(data[:LENGTH_BYTES], "little")
    if size > len(data) - LENGTH_BYTES:
        raise ManifestError(f"a manifest of {size} bytes does not fit into {len(data)}")
    head = bytes(data[: LENGTH_BYTES + size])
    try:
        pieces = tuple(read_piece(fields) for fields in json.loads(head[LENGTH_BYTES:])["tensors"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ManifestError(f"a manifest cannot be read: {error}") from None
    begins, end = _begins(len(head), pieces)
    if end > len(data):
        raise ManifestError(f"tensors of {end} bytes do not fit into {len(data)}")
    return Layout(pieces, begins, head, end)


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
        whole = joined_crc32(crc32(gap, whole), crc, piece.length)
        if not piece.name.endswith(BYTES_MARK):
            crcs.append((piece, crc))
    tensors = 0
    for piece, crc in sorted(crcs, key=lambda each: (each[0].name, each[0].offsets)):
        tensors = joined_crc32(crc32(repr(piece).encode(), tensors), crc, piece.length)
    return crc32(data[end:], whole), tensors


def joined_crc32(first: int, second: int, length: int) -> int:
    """Return the crc32 of two byte sequences in a row from the crc32 of each; `length` is that of the second one.

    This is zlib's `crc32_combine`, which Python has from 3.15 on.
    """
    return _product(_shift(length), first) ^ second


@lru_cache(maxsize=1_024)
def _shift(length: int) -> int:
    """Return the polynomial by which a crc32 is multiplied when `length` bytes follow: x to the power of their bits."""
    power, square = _CRC_ONE, _CRC_ONE >> 8
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


def read_piece(fields: Sequence[object]) -> Piece:
    """Return the piece that a manifest describes by its `fields`. Raises `ManifestError` and `ValueError`."""
    name, dtype, whole, offsets, sizes, length, *more = fields
    if not isinstance(name, str) or not isinstance(dtype, str) or not isinstance(length, int) or length < 0:
        raise ManifestError("a tensor has no name, type or length")
    strides = _shape(more[0]) if more else ()
    piece = Piece(name, dtype, _shape(whole), _shape(offsets), _shape(sizes), length, strides)
    if not len(piece.whole) == len(piece.offsets) == len(piece.sizes) == len(strides or piece.sizes):
        raise ManifestError(f"{name[:80]!r} has sizes of different dimensions")
    return piece


def _shape(value: object) -> Shape:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise ManifestError(f"{str(value)[:80]!r} is no size")
    return tuple(value)


def _begins(head: int, pieces: Sequence[Piece]) -> tuple[tuple[int, ...], int]:
    """Return where each piece begins, and where the last one ends."""
    begins, end = [], head
    for piece in pieces:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        begins.append(begin)
        end = begin + piece.length
    return tuple(begins), end
