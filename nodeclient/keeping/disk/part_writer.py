"""Writes parts of a step from memory of this node into the folder of the step. All functions block.

A part is the state of one rank: its shard of the big state (weights and optimizer), its small state, or both. While a
part is written to the disk, a worker may overwrite it in memory. So the note beside the file, without which the file
does not count, is written only after a check that the part is still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coordinatord.protocol.errors import OperationalError
from nodeclient.keeping.disk.durable_file import Progress, write_file
from nodeclient.keeping.disk.step_folder import Contents, Note, PartFile, StepName, file_name, write_note
from nodeclient.keeping.disk.tensor_file import TensorFile, describe
from nodeclient.keeping.parts.arenas import DamagedPartError, Held
from nodeclient.keeping.parts.digests import crc32_in_chunks
from nodeclient.keeping.parts.part_messages import Kind
from workerlib.contract.arena import ALIGNMENT
from workerlib.contract.manifest import read_layout

RANDOM = "random/"
"""The prefix of names of random states in a small state, as in `workerlib.keeping.small_state`, which needs torch."""


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
