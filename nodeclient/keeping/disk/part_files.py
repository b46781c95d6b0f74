"""Writes parts of a step from memory of this node to the disk, and reads them back. All functions block.

A part is the state of one rank: its shard of the big state (weights and optimizer), its small state, or both. While a
part is written to the disk, a worker may overwrite it in memory. So the note beside the file, without which the file
does not count, is written only after a check that the part is still there.

Bytes that are read get the layout of an arena, the memory in which workers keep state: so it makes no difference to a
worker where a part comes from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from coordinatord.protocol.errors import OperationalError
from nodeclient.keeping.disk.durable_file import Progress, open_regular, read_into, write_file
from nodeclient.keeping.disk.step_folder import Contents, Note, PartFile, StepName, UnusableError, file_name, write_note
from nodeclient.keeping.disk.tensor_file import (
    LENGTH_BYTES,
    TensorFile,
    TensorFileError,
    describe,
    header_length,
    read_header,
)
from nodeclient.keeping.parts.arenas import DamagedPartError, Held
from nodeclient.keeping.parts.digests import crc32_in_chunks
from nodeclient.keeping.parts.part_messages import Kind
from workerlib.contract.arena import ALIGNMENT, Commit, Place
from workerlib.contract.manifest import read_layout

RANDOM = "random/"
"""The prefix of names of random states in a small state, as in `workerlib.keeping.small_state`, which needs torch."""

Room = Callable[[Commit], Place]
"""Returns the place in memory for the part that a commit describes."""


class PartLostError(OperationalError):
    """A part to write is not in memory any more; the text says which."""


def write_big(folder: Path, step_name: StepName, held: Held, progress: Progress) -> None:
    """Write one shard of the big state.

    Raises `OSError`, `PartLostError`, `DamagedPartError`, `ManifestError` and `TensorFileError`.
    """
    data = _verified(held, progress)
    blocks = _blocks(describe(read_layout(data)), data)
    _write(folder, step_name, held, Contents.SHARD, blocks, progress)


def write_small(folder: Path, step_name: StepName, held: Held, progress: Progress, *, buffers: bool) -> None:
    """Write the small state of a rank; with `buffers`, its buffers as tensors too. Raises the errors of `write_big`."""
    data = _verified(held, progress)
    if held.kind is Kind.BIG:  # this place of an arena has both: the small state follows the big one, aligned
        end = read_layout(data).end
        data = data[end + -end % ALIGNMENT :]
    _write(folder, step_name, held, Contents.SMALL, [data], progress)
    layout = read_layout(data)
    numbers = [number for number, piece in enumerate(layout.pieces) if not piece.name.startswith(RANDOM)]
    if buffers and numbers:
        blocks = _blocks(describe(layout, only=numbers), data)
        _write(folder, step_name, held, Contents.BUFFERS, blocks, progress)


def _blocks(file: TensorFile, memory: memoryview) -> list[memoryview | bytes]:
    return [file.header, *(memory[span.in_memory : span.in_memory + span.length] for span in file.spans)]


def _write(
    folder: Path,
    step_name: StepName,
    held: Held,
    contents: Contents,
    blocks: Sequence[memoryview | bytes],
    progress: Progress,
) -> None:
    rank, shard = held.commit.rank, held.commit.shard
    name = file_name(contents, rank, shard)
    written = write_file(folder / name, blocks, progress)
    _check_unchanged(held)
    part = PartFile(name, contents, rank, shard, written.size, written.crc)
    write_note(folder, Note(step_name, part), progress)


def _verified(held: Held, progress: Progress) -> memoryview:
    """Return the data of a part in memory, after a check of their digest if one is known.

    Raises `PartLostError` and `DamagedPartError`.
    """
    data = held.place.data[: held.commit.length]
    known = held.place.digest(held.commit)
    if known is not None and crc32_in_chunks(data, progress.add) != known:
        _check_unchanged(held)  # a part that was overwritten is not damaged
        raise DamagedPartError(held)
    _check_unchanged(held)
    return data


def _check_unchanged(held: Held) -> None:
    """Raise `PartLostError` if a worker has overwritten a part, so that what was read of it is of no use."""
    if not held.place.still_has(held.commit):
        commit = held.commit
        raise PartLostError(f"step {commit.step} of rank {commit.rank} was overwritten before it was on the disk")


def read_part(folder: Path, step_name: StepName, part: PartFile, room: Room, progress: Progress) -> Commit:
    """Read a part in the folder of its step into its place; return its commit, with the numbers of `step_name`.

    They may differ from the manifest's: a step of an earlier run counts as one of round 0. The place becomes whole only
    if all bytes match the entry in the manifest. Raises `OSError`, `UnusableError`, and the errors of `room`.
    """
    path = folder / part.name
    try:
        file, size = open_regular(path)
        try:
            if size != part.bytes:
                raise UnusableError(f"it has {size:,} bytes, and {part.bytes:,} were written")
            read = _read_shard if part.contents is Contents.SHARD else _read_small
            return read(file, step_name, part, room, progress)
        finally:
            os.close(file)
    except (UnusableError, TensorFileError) as error:
        raise UnusableError(f"{path}: {error}") from None


def _read_small(file: int, step_name: StepName, part: PartFile, room: Room, progress: Progress) -> Commit:
    commit = _commit(step_name, part, part.bytes)
    place = room(commit)
    crc = read_into(file, 0, place.data[: part.bytes], 0, progress)
    return _commit_if_unchanged(place, commit, part, crc)


def _read_shard(file: int, step_name: StepName, part: PartFile, room: Room, progress: Progress) -> Commit:
    tensors, crc = _read_header(file, part.bytes, progress)
    layout = tensors.layout
    commit = _commit(step_name, part, layout.end)
    place = room(commit)
    place.data[: len(layout.manifest)] = layout.manifest  # the list of tensors with which a place begins
    at = len(tensors.header)
    for span in tensors.spans:
        memory = place.data[span.in_memory : span.in_memory + span.length]
        crc = read_into(file, at + span.in_file, memory, crc, progress)
    return _commit_if_unchanged(place, commit, part, crc)


def _read_header(file: int, size: int, progress: Progress) -> tuple[TensorFile, int]:
    """Return the header of a file of `size` bytes, and the crc32 of all bytes up to its end."""
    begin = bytearray(LENGTH_BYTES)
    crc = read_into(file, 0, memoryview(begin)[: min(size, LENGTH_BYTES)], 0, progress)
    header = bytearray(header_length(bytes(begin), size))
    crc = read_into(file, LENGTH_BYTES, memoryview(header), crc, progress)
    return read_header(bytes(header), size - LENGTH_BYTES - len(header)), crc


def _commit(name: StepName, part: PartFile, length: int) -> Commit:
    # The place is new, so this is its first commit (`serial=1`).
    return Commit(name.step, name.round, length, part.rank, name.world_size, part.shard, name.shards, serial=1)


def _commit_if_unchanged(place: Place, commit: Commit, part: PartFile, crc: int) -> Commit:
    """Make a place whole if the crc32 of its bytes matches the manifest. Raises `UnusableError`."""
    if crc != part.crc32:
        raise UnusableError("its digest does not match: it was changed, or the disk is bad")
    place.commit(commit)
    return commit
