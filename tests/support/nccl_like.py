"""A backend of torch for CPUs whose groups can be aborted as those of NCCL can: how that goes is up to a test."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

NCCL_LIKE = "nccl-like"


class NcclLikeGroup(dist.ProcessGroup):
    """A group of gloo's, with an abort."""

    def __init__(self, gloo: Any, rank: int, size: int, abort: Callable[[], object]) -> None:
        """Have the collectives of a group of gloo's."""
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stub lacks this form
        self._gloo = gloo
        self._abort = abort

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name of the backend."""
        return NCCL_LIKE

    def allreduce(self, *arguments: Any) -> Any:
        """Reduce tensors."""
        return self._gloo.allreduce(*arguments)

    def allgather(self, *arguments: Any) -> Any:
        """Gather tensors."""
        return self._gloo.allgather(*arguments)

    def broadcast(self, *arguments: Any) -> Any:
        """Broadcast tensors."""
        return self._gloo.broadcast(*arguments)

    def abort(self) -> None:
        """Do what the test wants."""
        self._abort()


def register(abort: Callable[[], object]) -> None:
    """Make the backend known in this process; its groups are aborted by `abort`."""

    def make(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
        return NcclLikeGroup(dist.ProcessGroupGloo(store, rank, size, timeout), rank, size, abort)

    dist.Backend.register_backend(NCCL_LIKE, make, devices=["cpu"])
