"""Describes the piece of a tensor that this rank has, and fills tensors from the pieces that ranks have saved.

A tensor of a sharded model is a DTensor, of which each rank has one piece. At another world size the pieces are others,
and torch's functions for distributed checkpoints compute which saved pieces cover them. These functions are imported
only if something is sharded: the import takes longer than a restart.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from workerlib.contract.manifest import Layout, Piece
from workerlib.keeping.kept_errors import KeptStateError, UnfitStateError


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    public = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    kind: Any = public or getattr(sys.modules.get("torch.distributed._tensor"), "DTensor", ())  # where torch 2.4 has it
    return isinstance(tensor, kind)


def local_part(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a tensor, without its gradient."""
    local = tensor._local_tensor if is_sharded(tensor) else tensor  # noqa: SLF001 - to_local() takes part in autograd
    result: torch.Tensor = local.detach()
    return result


def change_count(local: torch.Tensor) -> int:
    """Return how often torch has counted a change in place of a tensor that is no DTensor.

    This also counts the changes of a compiled optimizer, which has no hooks. Tensors made in inference mode have no
    count, so it is 0.
    """
    try:
        return local._version  # noqa: SLF001 - as torch's own checkpointing
    except RuntimeError:
        return 0


def piece_of(name: str, tensor: Any) -> Piece:
    """Return which piece of a tensor this rank has. Raises `KeptStateError`."""
    if is_lazy(tensor):
        raise KeptStateError(f"{name} has no size yet: call keep() after a first forward of its lazy module")
    local = local_part(tensor)
    if (why := bytes_obstacle(local)) is not None:
        raise KeptStateError(f"{name} {why}")
    if any(stride == 0 and size > 1 for stride, size in zip(local.stride(), local.shape, strict=True)):
        raise KeptStateError(f"{name} is expanded, so that nothing can be copied back into it: keep its clone()")
    whole, offsets = tuple(tensor.shape), (0,) * tensor.dim()
    if is_sharded(tensor):
        if not hasattr(tensor, "__create_chunk_list__"):
            raise KeptStateError(f"{name} is sharded, and torch 2.4 does not say how: keep() needs torch 2.5 for it")
        chunks = tensor.__create_chunk_list__()
        if len(chunks) != 1:
            raise KeptStateError(
                f"{name} has {len(chunks)} pieces on this rank, and keep() takes only tensors with one"
            )
        offsets = tuple(chunks[0].offsets)
    dtype = str(local.dtype).removeprefix("torch.")
    strides = () if is_sharded(tensor) or local.is_contiguous() else local.stride()
    return Piece(name, dtype, whole, offsets, tuple(local.shape), local.numel() * local.element_size(), strides)


def bytes_obstacle(local: torch.Tensor) -> str | None:
    """Return why the bytes of a tensor are not its whole state; None if they are."""
    if local.layout is not torch.strided:
        return f"is a tensor of the layout {local.layout}, which cannot be kept"
    if local.is_quantized:
        return f"is quantized ({local.dtype}), and its scales cannot be kept"
    if local.is_meta:
        return "is on the meta device: call keep() once the model has its parameters"
    if hasattr(type(local), "__tensor_flatten__"):
        return f"is a {type(local).__name__}, a tensor made of others, which cannot be kept"
    return None


def shard_of(tensors: Iterable[torch.Tensor], rank: int, world_size: int) -> tuple[int, int]:
    """Return the number of this rank's shard of the whole state, and how many shards there are: (0, 1) if it has all.

    Ranks with the same shard have the same bytes. With FSDP each rank has a shard of its own; with HSDP there are as
    many shards as a replica has ranks. If tensors are sharded over several meshes, or over some of the ranks, each rank
    counts as having a shard of its own.
    """
    sharded: Any = [tensor for tensor in tensors if is_sharded(tensor)]
    meshes = {id(tensor.device_mesh): tensor.device_mesh for tensor in sharded}
    dimensions = {
        at for tensor in sharded for at, placement in enumerate(tensor.placements) if not placement.is_replicate()
    }
    if not dimensions:
        return 0, 1
    [mesh, *others] = meshes.values()
    coordinate = mesh.get_coordinate()
    if others or coordinate is None or mesh.size() != world_size:
        return rank, world_size
    shard = 0
    for dimension in sorted(dimensions):
        shard = shard * mesh.size(dimension) + coordinate[dimension]
    return shard, math.prod(mesh.size(dimension) for dimension in dimensions)


def views_of(layout: Layout, data: memoryview) -> list[torch.Tensor]:
    """Return the tensors in the data of a place, without a copy. Raises `KeptStateError` if sizes do not fit."""
    return [_view(piece, begin, data) for piece, begin in zip(layout.pieces, layout.begins, strict=True)]


def _view(piece: Piece, begin: int, data: memoryview) -> torch.Tensor:
    dtype = getattr(torch, piece.dtype, None)
    if not isinstance(dtype, torch.dtype) or piece.elements * dtype.itemsize != piece.length:
        raise KeptStateError(f"{piece.name} is said to have {piece.length} bytes of {piece.dtype[:40]}")
    if not piece.length:
        return torch.empty(piece.sizes, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=piece.elements, offset=begin).view(piece.sizes)


GAPS_MAX = 16
"""A restored tensor takes at most this many times the memory of its elements. If it would take more, as a column of a
wide matrix does, it is made without the gaps between its elements."""


class SavedTensors:
    """The saved pieces of tensors, out of all parts of a step."""

    def __init__(self) -> None:
        self._pieces: dict[str, dict[tuple[int, ...], tuple[Piece, torch.Tensor]]] = {}
        """Each piece and its data, by the name of the tensor and the offsets within it."""

    def add(self, layout: Layout, data: memoryview) -> None:
        """Add the pieces of one part. Raises `KeptStateError`."""
        for piece, view in zip(layout.pieces, views_of(layout, data), strict=True):
            self._pieces.setdefault(piece.name, {})[piece.offsets] = piece, view

    @property
    def names(self) -> Sequence[str]:
        """The names of all tensors."""
        return list(self._pieces)

    def data(self, name: str, offsets: Sequence[int] | None = None) -> torch.Tensor:
        """Return the data of the piece at these offsets; without offsets, those of a tensor that was saved whole."""
        return self._pieces[name][(0,) * len(self.shape(name)) if offsets is None else tuple(offsets)][1]

    def metadata(self, name: str) -> Any:
        """Return torch's `TensorStorageMetadata` of a tensor with its saved pieces."""
        from torch.distributed.checkpoint import metadata  # noqa: PLC0415 - see the module

        pieces = [piece for piece, _ in self._pieces[name].values()]
        chunks = [metadata.ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes)) for piece in pieces]
        properties = metadata.TensorProperties(dtype=self.dtype(name))
        return metadata.TensorStorageMetadata(properties, torch.Size(self.shape(name)), chunks)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the size of a whole tensor."""
        return self._any_piece(name).whole

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor's elements."""
        found: torch.dtype = getattr(torch, self._any_piece(name).dtype)
        return found

    def new(self, name: str, device: torch.device | str) -> torch.Tensor:
        """Return an empty tensor for the whole of a saved one. Raises `UnfitStateError` if none has this name."""
        if name not in self._pieces:
            raise UnfitStateError(f"{name} is not in the kept state")
        shape, strides = self.shape(name), self._any_piece(name).strides
        if _is_compact(shape, strides):
            return torch.empty_strided(shape, strides, dtype=self.dtype(name), device=device)
        return torch.empty(shape, dtype=self.dtype(name), device=device)

    def was_sharded(self, name: str) -> bool:
        """Whether a tensor was saved in several pieces."""
        piece = self._any_piece(name)
        return piece.sizes != piece.whole

    def fill(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Fill this process's pieces of tensors. Raises `KeptStateError`, also if a saved tensor has no target."""
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Each region of a target, and the saved region of the same size."""
        resharded = {}
        for name, target in targets.items():
            saved = self._pieces.get(name)
            if saved is None:
                raise UnfitStateError(f"{name} is not in the kept state")
            if self.shape(name) != tuple(target.shape):
                size = tuple(target.shape)
                raise UnfitStateError(f"{name} was kept with the size {self.shape(name)}, but has {size}")
            if self.dtype(name) != target.dtype:
                raise UnfitStateError(f"{name} was kept as {self.dtype(name)}, but is {target.dtype}")
            own = saved.get(piece_of(name, target).offsets)
            if own is not None and own[0].sizes == tuple(local_part(target).shape):
                pairs.append((local_part(target), own[1]))
            else:
                resharded[name] = target
        if unused := self._pieces.keys() - targets.keys():
            raise UnfitStateError(f"{min(unused)} was kept, and no object of keep() has it")
        if resharded:
            pairs += self._reshard(resharded)
        with torch.no_grad():
            for target, source in pairs:
                target.copy_(source)

    def _reshard(self, targets: dict[str, Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield regions of targets and the saved regions for them, as torch plans them."""
        from torch.distributed.checkpoint.default_planner import create_default_local_load_plan  # noqa: PLC0415
        from torch.distributed.checkpoint.metadata import Metadata  # noqa: PLC0415

        for name in targets:
            if sum(piece.elements for piece, _ in self._pieces[name].values()) < math.prod(self.shape(name)):
                raise KeptStateError(f"{name} is not whole in the kept state")
        known = Metadata({name: self.metadata(name) for name in targets})
        for item in create_default_local_load_plan(targets, known).items:
            name = item.storage_index.fqn
            source = self.data(name, item.storage_index.offset)
            target = narrow(local_part(targets[name]), item.dest_offsets, item.lengths)
            yield target, narrow(source, item.storage_offsets, item.lengths)

    def _any_piece(self, name: str) -> Piece:
        return next(iter(self._pieces[name].values()))[0]


def _is_compact(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements with these strides do not overlap in memory, and do not lie far apart; False without strides."""
    room = 1
    for stride, size in sorted(zip(strides, shape, strict=False)):
        if size > 1 and stride < room:
            return False
        room += stride * (size - 1)
    return bool(strides) and room <= GAPS_MAX * math.prod(shape)


def narrow(tensor: torch.Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    """Return the region of a tensor that begins at `offsets` and has the size `lengths`."""
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(dimension, offset, length)
    return tensor
