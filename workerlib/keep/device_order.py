"""Shows how far a GPU has come: the host is ahead of it, so a step that is done on the host may go on there.

A save at the break of a round must not wait behind a collective that hangs, as it would in training's stream. So it has
a stream of its own, and begins only when the other stream has passed the end of the step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Protocol

import torch

from workerlib.keep.small_state import copy

PAUSE_S = 0.001
"""How long to wait between two looks at the GPU."""


class DeviceOrder(Protocol):
    """The order in which a device does what training gives it."""

    def note_end(self) -> None:
        """Note that the device was given all work of a step. The training thread calls this."""

    def has_ended(self, within_s: float | None) -> bool:
        """Wait until the device is done with that step, for ever if `within_s` is None; return whether it is."""

    def copy(self, to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
        """Copy beside training; return when it is done."""


class CudaOrder:
    """The order of a GPU. This was not tried on a GPU yet."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream for copies."""
        self._device = device
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here
        self._end: torch.cuda.Event | None = None

    def note_end(self) -> None:
        """Record an event in the stream of training."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
        event.record(torch.cuda.current_stream(self._device))
        self._end = event

    def has_ended(self, within_s: float | None) -> bool:
        """Wait for the event. Raises `RuntimeError` if an error has spoilt the context of this process."""
        end = self._end
        if end is None:
            return True
        if within_s is None:
            end.synchronize()
            return True
        until, pause = time.monotonic() + within_s, threading.Event()
        while not end.query():  # type: ignore[no-untyped-call]  # as above
            if time.monotonic() >= until:
                return False
            pause.wait(PAUSE_S)
        return True

    def copy(self, to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
        """Copy in the stream for copies. Raises `RuntimeError` as `has_ended` does."""
        with torch.cuda.stream(self._copies):
            copy(to, of)
        self._copies.synchronize()


def order_of(tensors: Iterable[torch.Tensor]) -> DeviceOrder | None:
    """Return the order of the GPU that has tensors; None if all are in the memory of the host."""
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    return None if device is None else CudaOrder(device)
