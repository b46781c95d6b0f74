"""The same state on a disk, as `torch.distributed.checkpoint` writes and reads it, to compare what was kept with."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.utils._pytree import tree_leaves, tree_map_only

from workerlib.keeping.pieces import local_part


def save_on_disk(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint, together with all other ranks."""
    save(_state(model, optimizer), checkpoint_id=folder)


def count_equal(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Return how many tensors this rank has, and of how many the checkpoint has the same bytes for it."""
    present = _state(model, optimizer)
    read = tree_map_only(torch.Tensor, torch.zeros_like, present)
    load(read, checkpoint_id=folder)
    pairs = [
        (local_part(one), local_part(other))
        for one, other in zip(tree_leaves(present), tree_leaves(read), strict=True)
        if isinstance(one, torch.Tensor)
    ]
    return len(pairs), sum(_bytes(one) == _bytes(other) for one, other in pairs)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""
