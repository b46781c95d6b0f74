"""What one look shows of a worker, or two: whether it waits in a collective, and whether it gets on otherwise. Pure."""

from __future__ import annotations

from msgspec import Struct

from coordinatord.protocol.stack_messages import Collective, CollectiveState, WorkerStacks

BUSY_CPUS = 0.1
"""The CPUs that a busy worker uses at least, over a fifth of a second: threads that only poll use less."""

BUSY_BYTES = 64 * 1024
"""The fewest bytes between two looks that show that a worker gets on: it reads and writes them when it saves to a slow
disk, and its connections count them when the data of its collective still comes and goes."""

WAITS_FOR_DISK = "waiting for IO"
"""The state of a process that waits for a disk, or for a file system of the network."""

TRACED = "traced"
"""The state of a process that a debugger holds, whether one of the kernel's or one of Python."""

HALTED = frozenset({"stopped", TRACED})
"""The states of a process that somebody has stopped."""


class SeenWorker(Struct, frozen=True):
    """Where one worker of a round stands."""

    node: str
    """Empty if it is not known."""
    rank: int
    now: WorkerStacks | None
    """None if it could not be asked."""
    before: WorkerStacks | None = None
    """Where it stood in an earlier look; None if there was none."""


def state_of(worker: SeenWorker) -> CollectiveState | None:
    """Return how far a worker is with its collective; None if it is not known to be in one."""
    return None if worker.now is None or worker.now.collective is None else worker.now.collective.state


def collective_of(worker: SeenWorker) -> Collective:
    """Return the collective of a worker that waits in one, or has done one."""
    assert worker.now is not None  # noqa: S101 - the worker waits in one
    assert worker.now.collective is not None  # noqa: S101 - as above
    return worker.now.collective


def outside_of(worker: WorkerStacks) -> str:
    """Return what a worker waits for that is no part of the job; empty if nothing is seen."""
    return "a disk" if worker.state == WAITS_FOR_DISK else worker.waits_for


def is_busy(worker: SeenWorker) -> bool:
    """Whether a worker that waits in no collective does something else."""
    now, before = worker.now, worker.before
    if now is None or now.state in HALTED:
        return False
    if max(now.cpus, 0.0 if before is None else before.cpus) >= BUSY_CPUS:
        return True
    if "running" in {now.state, "" if before is None else before.state}:
        return True  # on a busy host it may hardly get a CPU
    if before is None or before.pid != now.pid:
        return False
    moved = before.origin is now.origin and _main(before) != _main(now)
    return moved or moves_bytes(worker)


def moves_bytes(worker: SeenWorker) -> bool:
    """Whether a worker has read or written since the look before, or data has come or gone on its connections."""
    now, before = worker.now, worker.before
    if now is None or before is None or before.pid != now.pid:
        return False
    is_counted = bool(before.network_bytes and now.network_bytes)
    sent = now.network_bytes - before.network_bytes if is_counted else 0
    return max(now.io_bytes - before.io_bytes, sent) >= BUSY_BYTES


def _main(worker: WorkerStacks) -> bytes:
    """Return the stack of the main thread."""
    return worker.stacks.partition(b"\n\n")[0]
