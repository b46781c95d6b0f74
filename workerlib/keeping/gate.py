"""The gate before the optimizer: it keeps out of the state what a GPU computes from an aborted collective.

The host queues work on a GPU ahead of time. When a peer dies, its collective hangs until it is aborted. Then the GPU
goes on with the queued work, as if the gradients were there, perhaps without an error: the kernel of an aborted
collective lets those of its neighbours end as well (`postPeer` in NCCL's prims_simple.h). Three rules prevent that:

* The optimizer begins only after the GPU has done all queued work, and no process group has failed (`Gate.open`).
* If collectives are queued after that, `ctx.step` waits in the same way (`Gate.record_end`). So the work that is still
  queued after `ctx.step` is local, and does not depend on the process groups.
* The state is saved before anything is aborted. So if a group has failed, this worker waits, and raises no error: a
  handler of the script might destroy the group. The wait ends when nodeclient requests a save because the round has
  broken: that shuts the gate (`Gate.shut`), and training stands still.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.distributed import distributed_c10d

from workerlib.keeping.page_locking import PageLocks, in_pieces, page_locks
from workerlib.keeping.small_state import copy_tensors


class DeviceQueue:
    """The work that training has queued on GPUs, in the streams that it uses when `mark` is called.

    A save at the break of a round must not wait behind a collective that hangs, so copies have a stream of their own.
    """

    def __init__(self, *devices: torch.device) -> None:
        """Make the stream for copies, on the first of the GPUs."""
        self._devices = devices
        self._copy_stream = torch.cuda.Stream(devices[0])  # type: ignore[no-untyped-call]  # torch has no types here
        self._page_locks: PageLocks | None = None
        self._unlockable = ""
        """Why the pages of memory for copies cannot be locked; empty if they can."""
        try:
            with torch.cuda.device(devices[0]):
                self._page_locks = page_locks()
        except OSError as error:
            self._unlockable = str(error)

    @property
    def is_recording(self) -> bool:
        """Whether work is only recorded now, in a CUDA graph, and done later."""
        return torch.cuda.is_current_stream_capturing()

    def mark(self) -> Callable[[], bool]:
        """Return a function that says whether the GPUs have done all work queued up to now.

        That function raises `RuntimeError` if an error has broken a GPU. Only the training thread calls `mark`.
        """
        events = [torch.cuda.current_stream(device).record_event() for device in self._devices]
        return lambda: all(event.query() for event in events)

    def stopwatch(self) -> Callable[[], float]:
        """Return a function that waits for the GPUs, and returns how many seconds they took for the work since now.

        Work that is queued already does not count. The function raises `RuntimeError` as `mark` says.
        """
        begins = self._record_times()

        def taken_s() -> float:
            ends = self._record_times()
            for end in ends:
                end.synchronize()
            ms = max(begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True))
            return float(ms) / 1000

        return taken_s

    def _record_times(self) -> list[torch.cuda.Event]:
        timed: Callable[..., torch.cuda.Event] = partial(torch.cuda.Event, enable_timing=True)
        return [torch.cuda.current_stream(device).record_event(timed()) for device in self._devices]

    def lock_pages(self, generations: Sequence[memoryview], report: Callable[[str], None]) -> None:
        """Begin to lock the pages of memory for copies. `report` is told why copies stay slow, if that fails."""
        if self._page_locks is not None:
            self._page_locks.lock(generations, report)
        elif any(generations):  # all are empty if another worker saves the big state
            report(self._unlockable)

    @property
    def is_locking_pages(self) -> bool:
        """Whether pages are being locked, and copies will soon be much faster; see `PageLocks.is_at_work`."""
        return self._page_locks is not None and self._page_locks.is_at_work

    def copy(self, targets: list[torch.Tensor], sources: list[torch.Tensor], begins: Sequence[int]) -> None:
        """Copy tensors while training goes on, and wait for the copy. Raises `RuntimeError` as `mark` says.

        `begins` are the offsets of the targets in memory whose pages may be locked.
        """
        with torch.cuda.stream(self._copy_stream):
            copy_tensors(*in_pieces(targets, sources, begins))
        self._copy_stream.synchronize()


def queue_of(tensors: Iterable[torch.Tensor]) -> DeviceQueue | None:
    """Return the queue of the GPUs that have tensors; None if all are in the memory of the host."""
    devices = dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda)
    return DeviceQueue(*devices) if devices else None


def queue_of_collectives(state_queue: DeviceQueue | None) -> DeviceQueue | None:
    """Return the queue with the collectives of training; None if the host itself waits for these.

    `state_queue` is that of the GPUs that have the state, None if the host has it. With FSDP's offload the host has the
    state, but the current GPU reduces the gradients, so that GPU's queue is returned.
    """
    if state_queue is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # as above
        return DeviceQueue(torch.device("cuda", torch.cuda.current_device()))
    return state_queue


class TorchGroups:
    """The process groups of torch in this process. None of these calls of torch has a public name."""

    def begun_count(self) -> int | None:
        """Return how many collectives have begun, without single sends and receives; None if torch does not tell."""
        try:
            groups: list[Any] = list(distributed_c10d._world.pg_map)  # noqa: SLF001 - see the class
            count: int = sum(group._get_sequence_number_for_group() for group in groups)  # noqa: SLF001 - see the class
        except (RuntimeError, AttributeError):  # a backend does not count, or another release of torch
            return None
        return count

    def nccl_groups(self) -> list[Any]:
        """Return the groups of NCCL, whose collectives can be aborted; gloo has no abort."""
        groups = list(distributed_c10d._world.pg_map.items())  # noqa: SLF001 - see the class
        return [group for group, (backend, _) in groups if "nccl" in backend]

    def failure(self) -> str:
        """Return which group of NCCL has failed, and how, as one sentence; empty if none has.

        torch 2.6 and earlier do not tell.
        """
        for group in self.nccl_groups():
            with suppress(RuntimeError, AttributeError):  # the group is being destroyed, or torch does not tell
                error = group._get_backend(torch.device("cuda")).get_error()  # noqa: SLF001 - see the class
                if error.name != "SUCCESS":
                    return (
                        f"NCCL has reported {error.name} for process group {group.group_name}: a peer is gone, or the "
                        "network has failed. The step that was being done does not count"
                    )
        return ""


PAUSE_SHARE = 0.005
"""The pause before the next check of the device, as a share of the wait so far."""

PAUSE_MIN_S, PAUSE_MAX_S = 2e-5, 1e-3
"""The shortest pause is what the kernel takes to wake a thread. The longest one bounds how late an error is seen."""

CHECK_S = 1.0
"""The pause between two checks whether a process group has failed, while a worker waits."""

FAILURE_CHECKS = 10
"""How many such checks in a row have to find a failed group before the worker ends by itself. nodeclient ends a round
within a second of a death. If no process has died, as when a network fails, only this worker may notice."""


class Gate:
    """Waits for the work that training has queued on the GPU, as the three rules of this module say.

    The training thread opens the gate before the first change of a step, and the thread that saves waits for the end of
    that step.
    """

    def __init__(self, queue: DeviceQueue, groups: TorchGroups | None = None, *, has_peers: bool = True) -> None:
        """Guard the work in `queue`; `groups` are torch's by default. Without peers, `open` never waits."""
        self._queue = queue
        self._groups = TorchGroups() if groups is None else groups
        self._has_peers = has_peers
        self._step_is_done: Callable[[], bool] | None = None
        """Returns whether the device has done all work of the last step; None before the first step."""
        self._begun_at_opening: int | None = None
        """How many collectives had begun when the gate was opened in this step, which shows whether more were queued
        after that. None if it was not opened, or torch does not tell."""
        self._is_shut = False
        self.failed = ""
        """Which process group has failed, as one sentence, if nodeclient did not end the round in time; else empty."""

    def open(self) -> bool:
        """Wait until the device has done all queued work; return False if the round has ended meanwhile.

        False means that the gate was shut, or that `FAILURE_CHECKS` checks in a row have found a failed process group,
        which `failed` names. The training thread calls this before the first change of a step. Raises `RuntimeError` as
        `DeviceQueue.mark` says.
        """
        self._begun_at_opening = None
        if not self._has_peers:
            return True
        # What is recorded in a graph is not done now. When it is replayed, no hook calls this, and `record_end` waits.
        if not self._queue.is_recording and not self._wait_undisturbed(self._queue.mark()):
            return False
        self._begun_at_opening = self._groups.begun_count()
        return True

    def record_end(self) -> bool:
        """Record that all work of a step is queued; return False if the step does not count.

        The training thread calls this. It waits as `open` does if collectives were queued after the gate was opened.
        """
        is_local = not self._has_peers or (
            self._begun_at_opening is not None and self._begun_at_opening == self._groups.begun_count()
        )
        is_done, self._begun_at_opening = self._queue.mark(), None
        if not is_local and not self._wait_undisturbed(is_done):
            return False
        self._step_is_done = is_done
        return True

    def await_end(self, within_s: float | None) -> bool:
        """Wait until the device has done all work of the last step, for ever if `within_s` is None.

        Return whether it has. Raises `RuntimeError` as `open` does.
        """
        return self._step_is_done is None or _wait(self._step_is_done, within_s)

    def shut(self) -> None:
        """Have `open` and `record_end` return False from now on: collectives will be aborted."""
        self._is_shut = True

    def _wait_undisturbed(self, is_done: Callable[[], bool]) -> bool:
        """Wait until work is done while no group has failed; return False as `open` does."""

        def may_go_on() -> bool:
            # The device comes first. A collective is aborted only after the gate was shut, or torch has recorded the
            # failure. So if the work is done only because of an abort, the checks after that find the reason.
            done = is_done()
            return self._is_shut or (done and not self._groups.failure())

        checks = 0
        while not _wait(may_go_on, CHECK_S):
            failed = self._groups.failure()
            checks = checks + 1 if failed else 0
            if checks == FAILURE_CHECKS:
                self.failed = failed
                return False
        return not self._is_shut


def _wait(is_true: Callable[[], bool], within_s: float | None) -> bool:
    """Wait until the condition is true, for ever if `within_s` is None; return whether it is."""
    began_at, pause = time.monotonic(), threading.Event()
    while not is_true():
        waited_s = time.monotonic() - began_at
        if within_s is not None and waited_s >= within_s:
            return False
        pause.wait(min(max(PAUSE_SHARE * waited_s, PAUSE_MIN_S), PAUSE_MAX_S))
    return True
