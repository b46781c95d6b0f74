"""The manifest of a saved state: which tensors lie in the shared memory of a place, and where.

With a sharded model, each rank saves one *piece* of each tensor. So a manifest says which piece of the whole tensor it
is, and a reader merges the pieces of several ranks at any world size. A manifest is JSON at the beginning of a place of
an `arena`, and is rewritten only if names or sizes of tensors change. Standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workerlib.contract.arena import ALIGNMENT

BYTES_MARK = "/bytes"
"""The suffix of the names of pickles, in which `kept_storage` saves what is no tensor. The tensors' digest omits them:
ranks may pickle equal values differently."""

LENGTH_BYTES = 8
"""The size of the length in front of a manifest."""

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
    """The strides of the whole tensor in memory; empty if contiguous. They are no part of a digest, which nodeclient
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
    """The byte at which the tensors end. In a small state, the JSON of its other values begins there."""


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
