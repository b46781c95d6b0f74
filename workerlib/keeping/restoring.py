"""Restores the objects of `ctx.keep` from the step that a round resumes from, at any world size.

The round that did the step may have had more ranks or fewer. Big state is merged from the parts of all its ranks. Small
state is each rank's own. If it was not kept, a rank takes the lowest rank's buffers and values, and new random numbers.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from workerlib.agent_channel import CLOSED
from workerlib.contract.arena import Arena, ArenaError, Commit, Place, refusal_text
from workerlib.contract.channel_messages import AskRestore, Part, ResumeFrom
from workerlib.contract.manifest import ManifestError
from workerlib.contract.packets import ChannelError
from workerlib.keeping.adapter import Adapter
from workerlib.keeping.generations import read_generation
from workerlib.keeping.keep_channel import KeepChannel
from workerlib.keeping.kept_errors import KeptStateError, UnfitStateError
from workerlib.keeping.pieces import SavedTensors, is_sharded
from workerlib.keeping.random_state import reseed, restore
from workerlib.keeping.small_state import SmallState, copy_tensors, read_small

LOG = logging.getLogger("workerlib.keeping")


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The step that a round resumes from, in the arenas that nodeclient has sent."""

    round: int
    """The round that did the step."""
    step: int
    """-1 if there is nothing to resume from."""
    parts: tuple[tuple[Part, Arena], ...]

    @property
    def generations(self) -> list[tuple[Part, Place, Commit]]:
        """The places with big state of the step."""
        return [found for part, arena in self.parts for found in self._whole_places(part, arena.generations)]

    @property
    def smalls(self) -> list[tuple[Part, Place, Commit]]:
        """The places with small state of the step."""
        return [found for part, arena in self.parts for found in self._whole_places(part, arena.smalls)]

    def _whole_places(self, part: Part, places: Iterable[Place]) -> Iterator[tuple[Part, Place, Commit]]:
        for place in places:
            commit, wanted = place.read(), (self.round, self.step, part.rank)
            if commit is not None and (commit.round, commit.step, commit.rank) == wanted:
                yield part, place, commit

    @property
    def shape(self) -> tuple[int, int]:
        """The world size of the round that saved it, and the number of its shards; zeros if there is nothing."""
        return next(((commit.world_size, commit.shards) for _, _, commit in self.generations), (0, 0))

    @property
    def is_per_rank(self) -> bool:
        """Whether each rank had a state of its own, with no sharded tensor, as the stages of a pipeline have.

        Raises `ManifestError`.
        """
        layouts = (read_generation(place, commit)[0] for _, place, commit in self.generations if commit.shards > 1)
        pieces = [piece for layout in layouts for piece in layout.pieces]
        return bool(pieces) and all(piece.sizes == piece.whole for piece in pieces)


def request_state(channel: KeepChannel) -> RestorePoint:
    """Ask nodeclient for the state to resume from, and wait until it is on this host. Raises `KeptStateError`.

    An error never counts as "no state": a rank that starts from scratch beside others would spoil the training.
    """
    parts: list[tuple[Part, Arena]] = []
    try:
        channel.send(AskRestore())
        while True:
            message, files = channel.receive()
            try:
                if not isinstance(message, ResumeFrom) or len(files) != len(message.parts):
                    raise ChannelError(f"an answer was expected, and not {type(message).__name__}")
                # torch wants writable memory, and these files cannot be written to: so they are mapped copy-on-write.
                arenas = [Arena(memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_COPY))) for file in files]
                parts += zip(message.parts, arenas, strict=True)
            finally:
                for file in files:
                    os.close(file)
            if not message.more:
                return RestorePoint(message.round, message.step, tuple(parts))
    except (OSError, ChannelError, ArenaError) as error:
        why = refusal_text(error) if isinstance(error, OSError) else error
        why = CLOSED if isinstance(error, ConnectionError) else why
        raise KeptStateError(f"nodeclient did not hand over the kept state, so this worker ends: {why}") from error


def restore_objects(
    point: RestorePoint, objects: Mapping[str, Adapter], rank: int, world_size: int
) -> Mapping[str, Any]:
    """Restore objects and random state; return the values that the objects loaded, by name.

    Raises `KeptStateError`, after which the objects are unusable.
    """
    tensors = [tensor for kept in objects.values() for _, tensor in kept.big_tensors()]
    try:
        # A model that is sharded now is merged from all ranks, even if each of their pieces is a whole tensor.
        is_per_rank = point.is_per_rank and not any(map(is_sharded, tensors))
        saved, done, pending = _read(point, rank, only_own=is_per_rank)
    except ManifestError as error:
        raise KeptStateError(f"the state of step {point.step} that was kept is damaged: {error}") from error
    if is_per_rank and (ranks := point.shape[0]) != world_size:
        raise UnfitStateError(
            f"each of {ranks} ranks had a state of its own at step {point.step}, as the stages of a pipeline have: it "
            f"comes back only to {ranks} ranks, and not to {world_size}"
        )
    if not done:
        raise KeptStateError(
            f"step {point.step} was kept without the small state of any rank, so nothing can resume from it"
        )
    lowest = done[min(done)]
    own = done.get(rank) or pending  # a rank that died within the step has only a pending state of it
    if is_per_rank and own is None:
        raise KeptStateError(
            f"rank {rank} had a state of its own at step {point.step}, and its buffers and numbers are not there: "
            "those of another rank do not fit it"
        )
    values = {**lowest.values, **(own.values if own else {})}  # a pending state lacks values that change late
    _check_names(objects, values, own)
    device = tensors[0].device if tensors else torch.device("cpu")
    for name, adapter in objects.items():
        if name in values:
            with _fitting(name):
                adapter.make_missing(values[name], saved, device)
    saved.fill({name: target for adapter in objects.values() for name, target in adapter.targets().items()})
    _fill_buffers(objects, lowest.buffers if own is None else _with_late_buffers(objects, own, lowest), device)
    for name, adapter in objects.items():
        if name in values:
            with _fitting(name):
                adapter.load_values(values[name])
    if own is not None:
        restore(own.random_tensors, own.random)
        return values
    seed = reseed(point.round, point.step, rank)
    LOG.info(
        "rank %d has no small state of its own at step %d: it takes the buffers and numbers of rank %d, and random "
        "numbers from the seed %d",
        rank,
        point.step,
        min(done),
        seed,
    )
    return values


def _read(
    point: RestorePoint, rank: int, *, only_own: bool
) -> tuple[SavedTensors, dict[int, SmallState], SmallState | None]:
    """Return the big state, the small states at the end of the step by rank, and the pending one of `rank`.

    The big state is that of all ranks, or if `only_own` only that of `rank`.
    """
    saved = SavedTensors()
    done: dict[int, SmallState] = {}
    pending: tuple[int, SmallState] | None = None
    for part, place, commit in point.generations:
        layout, data, small = read_generation(place, commit)
        if part.big and (part.rank == rank or not only_own):
            saved.add(layout, data)
        if small is not None:
            done[part.rank] = read_small(small)
    # A small place may have the same state as a generation: then it does not matter which one is used.
    for part, place, commit in point.smalls:
        if not commit.pending:
            done[part.rank] = read_small(place.data[: commit.length])
        elif commit.rank == rank and (pending is None or commit.serial > pending[0]):
            pending = commit.serial, read_small(place.data[: commit.length])
    return saved, done, None if pending is None else pending[1]


def _check_names(objects: Mapping[str, Adapter], values: Mapping[str, Any], own: SmallState | None) -> None:
    """Raise `UnfitStateError` unless the script passes the objects that were kept.

    Otherwise some objects would be restored and others not, which mixes two steps. A rank may have kept an object that
    other ranks do not have. So only its `own` state shows that the script has left one out.
    """
    for name, adapter in objects.items():
        # An object without values has only tensors, which `SavedTensors.fill` checks.
        if name not in values and (adapter.iterates_when_read or adapter.values() is not None):
            present = ", ".join(sorted(values)) or "no values"
            raise UnfitStateError(f"{name} is not in the kept state, which has {present}")
    for name in own.values if own is not None else ():
        if name not in objects:
            raise UnfitStateError(f"{name} was kept, and keep() was not given it")


@contextmanager
def _fitting(name: str) -> Iterator[None]:
    """Raise `UnfitStateError` if the block fails, because an object cannot load the state kept under its name."""
    try:
        yield
    except KeptStateError:
        raise
    except Exception as error:
        raise UnfitStateError(f"{name} cannot load the state kept under that name: {error!r}") from error


def _with_late_buffers(
    objects: Mapping[str, Adapter], own: SmallState, lowest: SmallState
) -> Mapping[str, torch.Tensor]:
    """Return a rank's own buffers, except that late ones are the lowest rank's if those fit this rank's modules."""
    buffers = {**own.buffers}
    present = {name: mapping[key] for adapter in objects.values() for name, mapping, key in adapter.buffer_places()}
    for name in own.late_buffers:
        saved, buffer = lowest.buffers.get(name), present.get(name)
        if saved is not None and (buffer is None or _fits(saved, buffer)):
            buffers[name] = saved
    return buffers


def _fits(saved: torch.Tensor, buffer: torch.Tensor) -> bool:
    return saved.shape == buffer.shape and saved.dtype == buffer.dtype


def _fill_buffers(objects: Mapping[str, Adapter], kept: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Restore the buffers. Raises `UnfitStateError` unless the same ones were kept."""
    places = [place for adapter in objects.values() for place in adapter.buffer_places()]
    targets, sources = [], []
    for name, mapping, key in places:
        buffer, saved = mapping[key], kept.get(name)
        if buffer is None:  # a forward makes some buffers, such as those that are as large as its input
            mapping[key] = None if saved is None else saved.to(device, copy=True)
        elif saved is None or not _fits(saved, buffer):
            raise UnfitStateError(f"the buffer {name} was not kept, or has another size or type")
        else:
            targets.append(buffer.detach())
            sources.append(saved)
    if unused := kept.keys() - {name for name, _, _ in places}:
        raise UnfitStateError(f"the buffer {min(unused)} was kept, and no module has it")
    copy_tensors(targets, sources)
