"""Reads parts of a step from the disk into memory of this node, from which workers resume. All functions block.

The bytes get the layout of an arena, the memory in which workers keep state: so it makes no difference to a worker
where a part comes from.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nodeclient.keeping.disk.durable_file import Progress, open_regular, read_into
from nodeclient.keeping.disk.step_folder import Contents, PartFile, StepName, UnusableError
from nodeclient.keeping.disk.tensor_file import LENGTH_BYTES, TensorFile, TensorFileError, header_length, read_header
from workerlib.contract.arena import Commit, Place

Room = Callable[[Commit], Place]
"""Returns the place in memory for the part that a commit describes."""


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
