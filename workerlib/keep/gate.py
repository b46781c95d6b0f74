"""The gate before the optimizer: no step counts that a device has computed from a collective that was not completed.

The host is ahead of a GPU. When a peer dies, its collective never ends by itself. Once it is aborted, the GPU goes on
with the work behind it, as if the gradients were there, and reports no error (ProcessGroupNCCL of torch 2.13: `wait`
only puts an event into the stream of training). So two things are known for sure, and both are asked in this order:
whether the device has passed a mark, and then whether anything was aborted before. Whoever aborts says so first.

*Before the optimizer* the host waits until the device has passed all that was given. So until then the state is that of
the last step, and a failed collective is an error of the script's, as it is under gloo. *After it*, a step is whole
only if its end was passed while nothing was aborted: a script may have collectives of its own behind the optimizer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from workerlib.env import ERROR_HANDLING
from workerlib.keep.device_order import DeviceOrder, Mark
from workerlib.keep.kept_errors import LeftRoundError

PAUSES = 200
"""The pause between two looks at the device is the time since the first one, divided by this: so a wait is no more than
half a hundredth longer than the device needs."""

PAUSE_MIN_S, PAUSE_MAX_S = 2e-5, 1e-3
"""The shortest pause is what the kernel takes to wake a thread. The longest one bounds how late an error is seen."""


class StepEnd(Enum):
    """What is known of the last step that the device was given."""

    COMING = auto()
    """The device is at it."""
    WHOLE = auto()
    """The device has come to its end while nothing was aborted."""
    LOST = auto()
    """Something may have been aborted before: the state is that of no step."""


class Gate:
    """Knows whether the last step is whole on the device. The training thread and the one that saves use it."""

    def __init__(
        self, order: DeviceOrder, failure: Callable[[], str] | None = None, *, may_be_aborted: bool | None = None
    ) -> None:
        """Begin with a whole state.

        `failure` says which process group has failed, and `may_be_aborted` whether torch aborts such a group by itself.
        By default, torch and its variable are asked.
        """
        self._order = order
        self._failure = failure_of_groups if failure is None else failure
        self._may_be_aborted = os.environ.get(ERROR_HANDLING) != "0" if may_be_aborted is None else may_be_aborted
        self._mutex = threading.Lock()
        """Held while the end of a step is looked at, so that nothing is aborted between the two questions."""
        self._mark: Mark | None = None
        self._end = StepEnd.WHOLE
        self._is_shut = False

    def note_end(self) -> None:
        """Note that the device was given all work of a step. The training thread calls this."""
        with self._mutex:
            self._mark, self._end = self._order.mark(), StepEnd.LOST if self._is_shut else StepEnd.COMING

    def has_ended(self, within_s: float | None) -> bool:
        """Wait until it is known whether the last step is whole, with no limit if `within_s` is None; return that.

        Raises `RuntimeError` if an error has spoilt the device.
        """
        _wait(lambda: self._look() is not StepEnd.COMING, within_s)
        return self._end is StepEnd.WHOLE

    def open(self) -> None:
        """Wait until the device has passed all that training has given it. The training thread calls this.

        Raises `DistBackendError` if a collective has failed, `LeftRoundError` if the gate is shut, and `RuntimeError`
        as `has_ended` does.
        """
        if self._order.is_recording:
            return
        mark = self._order.mark()

        def has_passed() -> bool:
            passed = mark.has_passed()
            self._look()
            if self._is_shut:
                raise LeftRoundError
            if failed := self._failure():
                raise dist.DistBackendError(failed)
            return passed

        _wait(has_passed, None)

    def shut(self, within_s: float) -> None:
        """Let nothing count that the device does from now on, since collectives are about to be aborted.

        If the device is still at a step, it may come to its end within `within_s` seconds.
        """
        with suppress(RuntimeError):  # a spoilt device has no whole step
            self.has_ended(within_s)
        with self._mutex:
            self._is_shut = True
            if self._end is StepEnd.COMING:
                self._end = StepEnd.LOST

    def _look(self) -> StepEnd:
        with self._mutex:
            if self._end is StepEnd.COMING and self._mark is not None and self._mark.has_passed():
                self._end = StepEnd.LOST if self._may_be_aborted and self._failure() else StepEnd.WHOLE
            return self._end


def _wait(is_true: Callable[[], bool], within_s: float | None) -> None:
    """Wait until the condition is true, or the time is over; there is no limit if `within_s` is None."""
    began_at, pause = time.monotonic(), threading.Event()
    while not is_true():
        waited_s = time.monotonic() - began_at
        if within_s is not None and waited_s >= within_s:
            return
        pause.wait(min(max(waited_s / PAUSES, PAUSE_MIN_S), PAUSE_MAX_S))


def failure_of_groups() -> str:
    """Return which process group of NCCL has failed, and how, as one sentence; empty if none has.

    torch 2.6 and earlier do not tell.
    """
    for group, (backend, _) in list(distributed_c10d._world.pg_map.items()):  # noqa: SLF001 - torch has no public list
        if "nccl" not in backend:
            continue
        with suppress(RuntimeError, AttributeError):  # the group is being destroyed, or torch does not tell
            error = group._get_backend(torch.device("cuda")).get_error()  # noqa: SLF001 - as above
            if error.name != "SUCCESS":
                return (
                    f"NCCL has reported {error.name} for process group {group.group_name}: a peer is gone, or the "
                    "network has failed. The optimizer's step was not begun"
                )
    return ""
