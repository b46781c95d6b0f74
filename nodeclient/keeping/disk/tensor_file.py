"""The format of a file of tensors: safetensors, with the sharding information of torch's distributed checkpoints.

So stock torch can read the kept state of a job without these programs. A file has the length of its header (8 bytes),
the header (JSON), and then the tensors, one after the other (https://huggingface.co/docs/safetensors).
`torch.distributed.checkpoint.HuggingFaceStorageReader` reads such files: under `DCP_SHARDING_INFO` it finds which piece
of a whole tensor each entry is. Under `coordinatord` the header lists the pieces in the order and with the torch types
that they have in memory, so that a worker gets them back as they were.

No file is trusted: lengths, types and places are compared with each other and with the file's size.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.text import clip
from workerlib.contract.manifest import Layout, ManifestError, Piece, lay_out, read_piece

LENGTH_BYTES = 8
"""The size of the length in front of a header."""

_ALIGNMENT_BYTES = 8
"""The size of the largest elements. Tensors begin at a multiple of it in the file."""

HEADER_MAX = 64 << 20
"""The longest header: 200,000 tensors at 300 bytes each. The format itself allows 100 MB."""

TYPES = {
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "int16": ("I16", 2),
    "uint16": ("U16", 2),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int32": ("I32", 4),
    "uint32": ("U32", 4),
    "float32": ("F32", 4),
    "int64": ("I64", 8),
    "uint64": ("U64", 8),
    "float64": ("F64", 8),
}
"""The format's name of each torch type, and the bytes of an element. Other types are written as bytes, see `_entry`."""

_RAW = "U8"
"""The format's type of tensors that are written as bytes."""

PROBLEM_MAX = 200
"""The most characters of an error: a file may hold a long text."""

_METADATA = "__metadata__"
_SHARDING = "DCP_SHARDING_INFO"
_OWN = "coordinatord"


class TensorFileError(OperationalError):
    """A file does not have this format; the text says what is wrong with it."""


class Span(Struct, frozen=True):
    """Bytes that lie at one place in a file and at another one in memory."""

    in_file: int
    """Counted from the end of the header."""
    in_memory: int
    length: int


class TensorFile(Struct, frozen=True):
    """The structure of a file of tensors."""

    header: bytes
    """The header, with its length before it. It is padded so that the tensors are aligned."""
    layout: Layout
    """The layout of the place in memory that `spans` refer to. It has all tensors of the place, even if the file has
    only some. For a file to be read, it is the layout of the place that its tensors are read into."""
    spans: tuple[Span, ...]
    """The bytes of each tensor in the file, in the order of the file."""


def describe(layout: Layout, *, only: Sequence[int] | None = None) -> TensorFile:
    """Lay out a file for the tensors of a place in memory, or for some of them. Raises `TensorFileError`.

    `only` has the numbers of these tensors in the `layout`.
    """
    numbers = range(len(layout.pieces)) if only is None else only
    pieces = [(number, layout.pieces[number]) for number in numbers]
    # The largest elements come first, as in safetensors' own files: then all of them are aligned.
    pieces.sort(key=lambda numbered: -TYPES.get(numbered[1].dtype, ("", 0))[1])
    entries: dict[str, Any] = {}
    sharding: dict[str, Any] = {}
    spans = []
    end = 0
    for number, piece in pieces:
        itemsize = TYPES.get(piece.dtype, ("", 0))[1]
        if (itemsize and piece.elements * itemsize != piece.length) or (piece.length and not piece.elements):
            text = f"{piece.length} bytes of {piece.dtype} for the sizes {[*piece.sizes]} of {piece.name}"
            raise TensorFileError(clip(text, PROBLEM_MAX))
        if piece.elements == 0 and piece.whole != piece.sizes:
            continue  # this rank has nothing of a tensor that others have
        key, kind, sizes, offsets = _entry(piece)
        if key in entries:
            # The format has one entry for each key, so it holds no two pieces of one tensor.
            raise TensorFileError(clip(f"two tensors have the name {piece.name!r}", PROBLEM_MAX))
        entries[key] = {"dtype": kind, "shape": sizes, "data_offsets": [end, end + piece.length]}
        sharding[key] = {"saved_offsets": offsets}
        spans.append(Span(end, layout.begins[number], piece.length))
        end += piece.length
    own = [piece.fields for _, piece in sorted(pieces)]  # also the empty ones that were left out above
    metadata = {"format": "pt", "DCP_VERSION": "1.0", _SHARDING: _json(sharding), _OWN: _json(own)}
    header = _json({_METADATA: metadata, **entries}).encode()
    header += b" " * (-(LENGTH_BYTES + len(header)) % _ALIGNMENT_BYTES)
    if len(header) > HEADER_MAX:
        raise TensorFileError(f"the header of {len(entries)} tensors would have {len(header)} bytes")
    return TensorFile(len(header).to_bytes(LENGTH_BYTES, "little") + header, layout, tuple(spans))


def header_length(begin: bytes, size: int) -> int:
    """Read the length of the header from the first bytes of a file of `size` bytes. Raises `TensorFileError`."""
    length = int.from_bytes(begin, "little")
    if len(begin) < LENGTH_BYTES or length > min(HEADER_MAX, size - LENGTH_BYTES):
        raise TensorFileError(f"a header of {length} bytes in a file of {size}")
    return length


def read_header(text: bytes, data_bytes: int) -> TensorFile:
    """Return the structure of a file with this header and `data_bytes` after it. Raises `TensorFileError`.

    The header must be the one that `describe` makes for the tensors that it lists.
    """
    try:
        own = json.loads(json.loads(text)[_METADATA][_OWN])
        file = describe(lay_out(read_piece(fields) for fields in own))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ManifestError) as error:
        raise TensorFileError(f"a header cannot be read: {clip(str(error), PROBLEM_MAX)}") from None
    if file.header[LENGTH_BYTES:] != text:
        raise TensorFileError("a header describes its tensors in two different ways")
    end = sum(span.length for span in file.spans)
    if end != data_bytes:
        raise TensorFileError(f"tensors of {end} bytes in {data_bytes}")
    return file


def _entry(piece: Piece) -> tuple[str, str, list[int], list[int]]:
    """Return the key, type, sizes and offsets of a piece in the header. A type that the format lacks becomes bytes."""
    if piece.dtype in TYPES:
        return piece.name, TYPES[piece.dtype][0], [*piece.sizes], [*piece.offsets]
    # torch takes all entries with the same key, even in different files, for pieces of one tensor at their offsets.
    # Bytes lie at no offset of the tensor, so each piece gets a key of its own.
    begins = "x".join(map(str, piece.offsets))
    return f"{piece.name}/{piece.dtype}/{begins}", _RAW, [piece.length], [0]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
