"""The gate before the optimizer: no step counts that a device has computed from a collective that was not completed.

The host is ahead of a GPU. When a peer dies, its collective does not end by itself. Once somebody aborts it, the GPU
goes on with the work behind it, as if the gradients were there, and no error need be seen here: the kernel of an
aborted collective lets those of its neighbours end as well (`postPeer` in NCCL's prims_simple.h). So three things
keep the state that of a whole step:

* The optimizer does not begin before the device has passed all that was given, with no group failed (`Gate.open`).
* If collectives follow behind the gate, or there was none, `ctx.step` waits in the same way (`Gate.record_end`). So all
  that the device may still do after `ctx.step` is local, and is done whatever becomes of the process groups.
* Nobody aborts before the state is saved. A failed group is no error of the script's, whose handlers might destroy
  it: this worker waits for nodeclient, which saves first. From then on the gate is shut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch.distributed import distributed_c10d

from workerlib.keeping.small_state import copy


class Mark(Protocol):
    """A place in the order of work that training has given to a device."""

    def has_passed(self) -> bool:
        """Whether the device has done all work before it. Raises `RuntimeError` if an error has spoilt the device."""


class DeviceOrder(Protocol):
    """The order in which a device does what training gives it: the host is ahead of a GPU.

    A save at the break of a round must not wait behind a collective that hangs, as it would in training's stream. So it
    has a stream of its own.
    """

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


PAUSES = 200
"""The pause between two checks of the device is the time since the first one, divided by this: so a wait that is not
short takes at most half a percent more than the device needs."""

PAUSE_MIN_S, PAUSE_MAX_S = 2e-5, 1e-3
"""The shortest pause is what the kernel takes to wake a thread. The longest one bounds how late an error is seen."""

CHECK_S = 1.0
"""The pause between two checks whether a process group has failed, while a worker waits."""

FAILURE_CHECKS = 10
"""How many such checks a worker with a failed group waits for nodeclient, which ends a round within a second of a
death. If no process has died, as when a network fails, nobody else may notice."""


class Groups(Protocol):
    """The process groups of this process."""

    def begun(self) -> int | None:
        """Return how many collectives have begun; None if that is not known."""

    def failure(self) -> str:
        """Return which group has failed, and how, as one sentence; empty if none has."""


class Gate:
    """Knows how far the device has come. The training thread and the one that saves use it."""

    def __init__(self, order: DeviceOrder, groups: Groups | None = None, *, has_peers: bool = True) -> None:
        """Begin with a whole state. The process groups are torch's by default; without peers, nothing waits."""
        self._order = order
        self._groups: Groups = TorchGroups() if groups is None else groups
        self._has_peers = has_peers
        self._end: Mark | None = None
        self._opened_at: int | None = None
        """How many collectives had begun when the gate was opened in this step; None if it was not, or not known."""
        self._is_shut = False
        self.failed = ""
        """Which process group has failed without a word of nodeclient, as one sentence; empty if none has."""

    def open(self) -> bool:
        """Wait until the device has passed all that training has given it; return whether it has, undisturbed.

        If not, the gate is shut, or a process group has failed for long, see `failed`. The training thread calls this
        before the first change of a step. Raises `RuntimeError` if an error has spoilt the device.
        """
        self._opened_at = None
        if not self._has_peers:
            return True
        if not self._order.is_recording and not self._pass(self._order.mark()):
            return False
        self._opened_at = self._groups.begun()
        return True

    def record_end(self) -> bool:
        """Record that the device was given all work of a step; return False if the step does not count.

        The training thread calls this. It waits as `open` does if the step may depend on later collectives.
        """
        is_local = not self._has_peers or (self._opened_at is not None and self._opened_at == self._groups.begun())
        mark, self._opened_at = self._order.mark(), None
        if not is_local and not self._pass(mark):
            return False
        self._end = mark
        return True

    def has_ended(self, within_s: float | None) -> bool:
        """Wait until the device has come to the end of the last step, with no limit if `within_s` is None.

        Return whether it has. Raises `RuntimeError` as `open` does.
        """
        end = self._end
        return end is None or _wait(end.has_passed, within_s)

    def shut(self) -> None:
        """Let the device pass no more gate in this round: collectives will be aborted."""
        self._is_shut = True

    def _pass(self, mark: Mark) -> bool:
        """Wait until the device has passed a mark while no group has failed; return whether it has, as `open` does."""
        checks = 0
        while not _wait(lambda: self._is_open_at(mark), CHECK_S):
            failed = self._groups.failure()
            checks = checks + 1 if failed else 0
            if checks > FAILURE_CHECKS:
                self.failed = failed
                return False
        return not self._is_shut

    def _is_open_at(self, mark: Mark) -> bool:
        # In this order: whoever aborts has shut the gate, or torch has recorded the failure, before the device goes on.
        passed = mark.has_passed()
        return self._is_shut or (passed and not self._groups.failure())


def _wait(is_true: Callable[[], bool], within_s: float | None) -> bool:
    """Wait until the condition is true, with no limit if `within_s` is None; return whether it is."""
    began_at, pause = time.monotonic(), threading.Event()
    while not is_true():
        waited_s = time.monotonic() - began_at
        if within_s is not None and waited_s >= within_s:
            return False
        pause.wait(min(max(waited_s / PAUSES, PAUSE_MIN_S), PAUSE_MAX_S))
    return True


class TorchGroups:
    """The process groups of torch in this process. None of what is asked has a public name."""

    def begun(self) -> int | None:
        """Return how many collectives have begun; torch does not count single sends and receives."""
        try:
            return sum(_begun_in(group) for group in list(distributed_c10d._world.pg_map))  # noqa: SLF001 - see the class
        except (RuntimeError, AttributeError):  # a backend does not count, or another release of torch
            return None

    def of_nccl(self) -> list[Any]:
        """Return the groups of NCCL, whose collectives can be aborted; gloo has no abort."""
        groups = list(distributed_c10d._world.pg_map.items())  # noqa: SLF001 - see the class
        return [group for group, (backend, _) in groups if "nccl" in backend]

    def failure(self) -> str:
        """Return which group of NCCL has failed. torch 2.6 and earlier do not tell."""
        for group in self.of_nccl():
            with suppress(RuntimeError, AttributeError):  # the group is being destroyed, or torch does not tell
                error = group._get_backend(torch.device("cuda")).get_error()  # noqa: SLF001 - see the class
                if error.name != "SUCCESS":
                    return (
                        f"NCCL has reported {error.name} for process group {group.group_name}: a peer is gone, or the "
                        "network has failed. The step that was being done does not count"
                    )
        return ""


def _begun_in(group: Any) -> int:
    number: int = group._get_sequence_number_for_group()  # noqa: SLF001 - see `TorchGroups`
    return number
