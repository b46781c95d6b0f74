"""Shows how far a GPU has come: the host is ahead of it, so a step that is done on the host may go on there.

A save at the break of a round must not wait behind a collective that hangs, as it would in training's stream. So it has
a stream of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from workerlib.keep.small_state import copy


class Mark(Protocol):
    """A place in the order of work that training has given to a device."""

    def has_passed(self) -> bool:
        """Whether the device has done all work before it. Raises `RuntimeError` if an error has spoilt the device."""


class DeviceOrder(Protocol):
    """The order in which a device does what training gives it."""

    @property
    def is_recording(self) -> bool:
        """Whether what training gives is only recorded now, as in a CUDA graph, and done later."""

    def mark(self) -> Mark:
        """Set a mark behind all that was given. The training thread calls this."""

    def copy(self, to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
        """Copy beside training; return when it is done."""


class CudaOrder:
    """The order of GPUs. It is that of the streams that are training's when `mark` is called."""

    def __init__(self, *devices: torch.device) -> None:
        """Make the stream for copies, on the first of the GPUs."""
        self._devices = devices
        self._copies = torch.cuda.Stream(devices[0])  # type: ignore[no-untyped-call]  # torch has no types here

    @property
    def is_recording(self) -> bool:
        """Whether a CUDA graph is being captured."""
        return torch.cuda.is_current_stream_capturing()

    def mark(self) -> Mark:
        """Record an event in training's stream of each GPU."""
        return _CudaMark([torch.cuda.current_stream(device).record_event() for device in self._devices])

    def copy(self, to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
        """Copy in the stream for copies. Raises `RuntimeError` as `Mark.has_passed` does."""
        with torch.cuda.stream(self._copies):
            copy(to, of)
        self._copies.synchronize()


class _CudaMark:
    def __init__(self, events: list[torch.cuda.Event]) -> None:
        self._events = events

    def has_passed(self) -> bool:
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]  # as above


def order_of(tensors: Iterable[torch.Tensor]) -> DeviceOrder | None:
    """Return the order of the GPUs that have tensors; None if all are in the memory of the host."""
    devices = dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda)
    return CudaOrder(*devices) if devices else None


def order_of_collectives(order: DeviceOrder | None) -> DeviceOrder | None:
    """Return the order in which collectives are done that training waits for; None if the host itself waits for them.

    It is that of the GPU that has the state, if there is one. State in the memory of the host, as with FSDP's offload,
    is trained with gradients that a GPU has reduced: then it is that of the current GPU.
    """
    if order is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # as above
        return CudaOrder(torch.device("cuda", torch.cuda.current_device()))
    return order
