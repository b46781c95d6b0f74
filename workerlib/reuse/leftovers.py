"""Removes what a round has left behind in a process that goes on: process groups, and what is bound to them."""

# ruff: noqa: PLC0415  # importing workerlib stays cheap, and possible without torch

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress

from workerlib import gloo

COLLECTIVE_SIGNS = ("gloo/", "ProcessGroup", "NCCL error", "ncclRemoteError", "Connection closed by peer")
"""Texts in the `RuntimeError` of a failed collective, for which torch has no exception class."""

DEVICE_SIGNS = ("CUDA error", "Cuda failure", "unhandled cuda error", "HIP error", "unhandled hip error")
"""Texts in an error of the GPU, also if NCCL reports it: after that, no call of this process works."""

GONE_SIGNS = ("process group has not been initialized", "Invalid process group specified", "is not registered")
"""Texts in the `ValueError` of a call with a group that `abort_collectives` has removed."""

MANY_OBJECTS = 50_000
"""The number of objects that are worth leaving out of garbage collections. Python has 10,000, torch 200,000."""

_is_set_aside = False
"""Whether `set_aside` has frozen objects in this process."""


def is_of_collective(error: BaseException, *, asked: bool = False) -> bool:
    """Whether the error is that of a collective or a process group, so that this worker is not at fault.

    If the worker was `asked` to leave, it may also be that of a group which is gone.
    """
    import torch.distributed

    if isinstance(error, torch.distributed.DistError):
        return True
    if asked and type(error) is ValueError and any(sign in str(error) for sign in GONE_SIGNS):
        return True
    return type(error) is RuntimeError and any(sign in str(error) for sign in COLLECTIVE_SIGNS)


def is_of_device(error: BaseException) -> bool:
    """Whether this error, or any that led to it, is that of a GPU."""
    import torch

    kind = getattr(torch, "AcceleratorError", ())  # torch 2.7 has none
    causes = _all_behind(error)
    return any(isinstance(cause, kind) or any(sign in str(cause) for sign in DEVICE_SIGNS) for cause in causes)


def end_of_round(error: BaseException, *, asked: bool = False) -> BaseException | None:
    """Return the error that ends the round for this worker, though the script may have raised another one from it.

    That is an error of a collective, or `LeftRoundError`. It may be the error itself, its cause or its context, or all
    errors of an exception group. None if there is no such error: then the script itself has failed. Errors of a GPU,
    and exceptions that end the process on purpose, such as `SystemExit`, never end a round. `asked` says whether the
    worker was asked to leave.
    """
    return None if is_of_device(error) else _end_in(error, set(), asked=asked)


def _all_behind(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its causes and contexts, and the errors of groups among them, each once."""
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            yield current
            pending += [current.__cause__, current.__context__]
            pending += current.exceptions if isinstance(current, BaseExceptionGroup) else ()


def _end_in(error: BaseException | None, seen: set[int], *, asked: bool) -> BaseException | None:
    from workerlib.keeping.kept_errors import LeftRoundError

    if error is None or id(error) in seen:
        return None
    seen.add(id(error))
    if isinstance(error, LeftRoundError) or is_of_collective(error, asked=asked):
        return error
    if isinstance(error, BaseExceptionGroup):
        ends = [_end_in(inner, seen, asked=asked) for inner in error.exceptions]
        return ends[0] if all(ends) else None
    if not isinstance(error, Exception):
        return None
    shown = None if error.__suppress_context__ else error.__context__
    return _end_in(error.__cause__, seen, asked=asked) or _end_in(shown, seen, asked=asked)


def forget_frames(error: BaseException | None) -> None:
    """Drop the local variables in the traceback of an error, such as a model of this round."""
    for one in _all_behind(error):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None


def set_aside() -> None:
    """Leave all present objects out of garbage collections: torch alone has 200,000, and each end of a round collects.

    Present garbage is collected before. Objects that become a garbage cycle later stay. A warm worker inherits the
    frozen objects of its parent and has few others, so nothing is done in it. `gc.get_freeze_count` would show that as
    well, but it visits all frozen objects, which takes 0.03 s.
    """
    global _is_set_aside  # noqa: PLW0603 - a process has one collector
    if len(gc.get_objects()) >= MANY_OBJECTS:
        gc.collect()
        gc.freeze()
        _is_set_aside = True


def take_back() -> None:
    """Undo `set_aside`, so that the end of Python closes all files and calls all destructors."""
    global _is_set_aside  # noqa: PLW0603 - as above
    if _is_set_aside:
        gc.unfreeze()
        _is_set_aside = False


def end_groups() -> None:
    """Destroy all process groups, and remove the hooks of models that were wrapped for them.

    A script may still hold such a model in a variable. Its hooks would run for the gradients of the next round's model,
    with a group that is gone.
    """
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel

    for wrapped in gc.get_objects():
        if issubclass(type(wrapped), DistributedDataParallel):
            wrapped._remove_autograd_hooks()  # noqa: SLF001 - torch removes them so itself, without a public name
    gloo.let_threads_finish()
    gc.collect()  # a wrapped model that was dropped is a cycle, which holds its group
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        gloo.let_threads_finish()


def holds_mesh() -> bool:
    """Whether the script holds a mesh of devices: its process groups are those of the round that has ended."""
    meshes = sys.modules.get("torch.distributed.device_mesh")
    kind = getattr(meshes, "DeviceMesh", None)
    return kind is not None and any(issubclass(type(found), kind) for found in gc.get_objects())


def forget_compiled() -> None:
    """Have all compiled code compiled again: ranks and the world size may be constants in it."""
    import torch

    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # noqa: SLF001 - it does the same as `torch.compiler.reset`, but imports nothing


def abort_collectives() -> None:
    """Abort the collectives of NCCL in which this process waits, and forget all process groups."""
    from torch.distributed import distributed_c10d

    with suppress(ValueError, AssertionError, RuntimeError):  # a group is just being made
        distributed_c10d._abort_process_group()  # noqa: SLF001 - experimental, without a public name
