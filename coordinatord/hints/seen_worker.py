"""Reads one or two samples of a worker: whether it waits in a collective, and whether it makes progress. Pure.

A sample has the worker's stack, its collective, and what the kernel shows of its process, at one moment. Its node takes
it within a fifth of a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from coordinatord.protocol.stack_messages import Collective, CollectiveState, WorkerStacks

BUSY_CPUS = 0.1
"""The least CPUs that a busy worker uses during a sample. Threads that only poll use less."""

BUSY_BYTES = 64 * 1024
"""The fewest bytes moved between two samples that show progress: on a slow disk, or over the connections of a slow
collective."""

WAITS_FOR_DISK = "waiting for IO"
"""The state of a process that waits for a disk or a network file system."""

TRACED = "traced"
"""The state of a process that a debugger, of the kernel or of Python, has stopped."""

STOPPED = "stopped"
"""The state of a process that a signal such as SIGSTOP has stopped."""

HALTED = frozenset({STOPPED, TRACED})
"""The states of a process that somebody has stopped."""

GONE = frozenset({"ended", ""})
"""The states of a process that has ended; the empty one, if it was reaped."""

_TORCH_OPERATOR = rb"(?:[\w.]+\.)?__call__ \([^\n]*torch/_ops\.py:\d+\)\n"
"""The frame of an operator of torch, by which functional collectives call native code."""

_MAKES_GROUP = re.compile(
    rb"[^\n]*\n(?:_new_process_group_helper|_create_process_group_wrapper|_store_based_barrier|split_group"
    rb"|_create_c10d_store|_verify_param_shape_across_processes)"
    rb" \((?:[^\n]*/)?torch/distributed/(?:distributed_c10d|rendezvous|utils)\.py:\d+\)"
)
"""The beginning of a stack in which the innermost function waits for all members of a new process group. The last of
these functions is the first collective of a DDP module."""

_COLLECTIVE = re.compile(
    rb"[^\n]*\n(?:" + _TORCH_OPERATOR + rb")?"
    rb"(?:(?:all_reduce|all_gather|reduce_scatter|all_to_all)(?:_(?:into_tensor|tensor|single|coalesced|base))*"
    rb"|_all_gather_base|_reduce_scatter_base|broadcast|reduce|gather|scatter|barrier|monitored_barrier"
    rb"|_coalescing_manager|_sync_params_and_buffers)"
    rb" \((?:[^\n]*/)?torch/distributed/(?:distributed_c10d|_functional_collectives|utils)\.py:\d+\)"
)
"""The beginning of a stack in which the innermost function is a collective. `_object_to_tensor` is none, nor is any
function of a checkpoint: they compute, or write."""

_RESTORES = re.compile(rb"\nrequest_state \((?:[^\n]*/)?workerlib/keeping/restoring\.py:\d+\)")
"""The frame in which a worker waits until its node has fetched the state that it resumes from."""


class SeenWorker(Struct, frozen=True):
    """The samples of one worker of a round."""

    node: str
    """Empty if not known."""
    rank: int
    now: WorkerStacks | None
    """None if there is no answer."""
    before: WorkerStacks | None = None
    """The earlier sample, if any."""


class WaitPlace(Struct, frozen=True):
    """The place at which a worker waits; two workers wait together if theirs are equal."""

    operation: str
    number: int
    """The number of the collective in its group."""
    group: str = ""
    """The group, where workers wait in several; empty otherwise."""
    shape: str | None = None
    """The input of the worker, if the places of all workers differ only in that; None otherwise."""


def state_of(worker: SeenWorker) -> CollectiveState | None:
    """Return a worker's progress in its collective; None if it is not known to be in one."""
    return None if worker.now is None or worker.now.collective is None else worker.now.collective.state


def collective_of(worker: SeenWorker) -> Collective:
    """Return the collective of a worker that waits in one, or has completed one."""
    assert worker.now is not None  # noqa: S101 - the caller has seen its collective
    assert worker.now.collective is not None  # noqa: S101 - as above
    return worker.now.collective


def wait_place(collective: Collective) -> WaitPlace:
    """Return the place of a worker in a collective, without the fields that depend on other workers."""
    return WaitPlace(collective.operation.rpartition(":")[2], collective.number)


def longest_wait_s(seen_workers: Iterable[SeenWorker]) -> float:
    """Return how long the longest wait of a worker has lasted, in seconds; 0 if none waits."""
    return max(
        (collective_of(worker).age_s for worker in seen_workers if state_of(worker) is CollectiveState.WAITS),
        default=0.0,
    )


def outside_wait(worker: WorkerStacks) -> str:
    """Return the thing outside the job that a worker waits for; empty if none is seen."""
    if worker.state == WAITS_FOR_DISK:
        return "a disk"
    return "its kept state" if _RESTORES.search(main_stack(worker)) else worker.waits_for


def makes_group(worker: WorkerStacks) -> bool:
    """Whether a worker waits, by its stack, until all members of a new process group have come."""
    return worker.state not in HALTED and _MAKES_GROUP.match(worker.stacks) is not None


def waits_unrecorded(worker: WorkerStacks) -> bool:
    """Whether a worker waits for others, by its stack, where the flight recorder does not show it.

    The recorder has no collective before the connections for it are made, no `monitored_barrier`, and no group that is
    being made. `send` and `recv` do not count: a script may as well wait for them in a line of its own.
    """
    is_recorded = worker.collective is not None and worker.collective.state is not CollectiveState.DONE
    in_collective = worker.state not in HALTED and _COLLECTIVE.match(worker.stacks) is not None
    return not is_recorded and (in_collective or makes_group(worker))


def is_free(worker: SeenWorker) -> bool:
    """Whether others may wait for a worker: as far as is known, it lives and waits for nobody."""
    now = worker.now
    return now is None or not (now.state in GONE or state_of(worker) is CollectiveState.WAITS or waits_unrecorded(now))


def is_busy(worker: SeenWorker) -> bool:
    """Whether a worker that waits in no collective is at work, so that the others need only wait longer."""
    now, before = worker.now, worker.before
    if now is None or now.state in HALTED:
        return False
    if uses_cpu(worker):
        return True
    if before is None or before.pid != now.pid:
        return False
    # Stacks that were obtained in different ways differ even if the worker stands still.
    moved = before.origin is now.origin and main_stack(before) != main_stack(now)
    return moved or moves_bytes(worker)


def uses_cpu(worker: SeenWorker) -> bool:
    """Whether a thread or a child process of a worker computes, or is about to, in one of its samples."""
    samples = [sample for sample in (worker.now, worker.before) if sample is not None]
    # On a busy host, a running process may hardly get a CPU.
    return any(sample.cpus >= BUSY_CPUS or sample.state == "running" for sample in samples)


def sleeps(worker: SeenWorker) -> bool:
    """Whether the main thread of a worker sleeps for a given time in each of its samples."""
    return all("nanosleep" in sample.waits_in for sample in (worker.now, worker.before) if sample is not None)


def moves_bytes(worker: SeenWorker) -> bool:
    """Whether a worker has read or written since the earlier sample, or its connections have carried data."""
    now, before = worker.now, worker.before
    if now is None or before is None or before.pid != now.pid:
        return False
    is_counted = bool(before.network_bytes and now.network_bytes)  # 0 stands for an unknown number
    carried = now.network_bytes - before.network_bytes if is_counted else 0
    return max(now.io_bytes - before.io_bytes, carried) >= BUSY_BYTES


def main_stack(worker: WorkerStacks) -> bytes:
    """Return the stack of the main thread."""
    return worker.stacks.partition(b"\n\n")[0]
