"""Prepares a process for its next round: recognises the error that ended the last one, and removes its objects.

A new process would have none of the last round: no process groups, no compiled code with its ranks, no hooks of its
models, and no tracebacks, whose local variables hold its tensors.
"""

# ruff: noqa: PLC0415  # importing workerlib stays cheap, and possible without torch

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress

from workerlib import gloo

COLLECTIVE_SIGNS = ("gloo/", "ProcessGroup", "NCCL error", "ncclRemoteError", "Connection closed by peer")
"""Parts of the text of a failed collective's `RuntimeError`, for which torch has no exception class."""

DEVICE_SIGNS = ("CUDA error", "Cuda failure", "unhandled cuda error", "HIP error", "unhandled hip error")
"""Parts of the text of an error of the GPU, after which no call of this process works there."""

GONE_SIGNS = ("process group has not been initialized", "Invalid process group specified", "is not registered")
"""Parts of the text of the `ValueError` of a call with a group that `abort_collectives` has removed."""

MANY_OBJECTS = 50_000
"""The least number of objects that is worth freezing. Python itself has 10,000, and with torch 200,000."""

_has_frozen = False
"""Whether `freeze_objects` has frozen any; to ask `gc.get_freeze_count` would take 0.03 s."""


def is_collective_error(error: BaseException, *, asked: bool = False) -> bool:
    """Whether a collective or a process group has failed, so that this worker is not at fault.

    If the worker was `asked` to leave, a call with a group that is gone counts as well.
    """
    import torch.distributed

    if isinstance(error, torch.distributed.DistError):
        return True
    if asked and type(error) is ValueError and any(sign in str(error) for sign in GONE_SIGNS):
        return True
    return type(error) is RuntimeError and any(sign in str(error) for sign in COLLECTIVE_SIGNS)


def is_device_error(error: BaseException) -> bool:
    """Whether this error, or one of its causes, is that of a GPU."""
    import torch

    kind = getattr(torch, "AcceleratorError", ())  # torch 2.7 has none
    causes = _with_causes(error)
    return any(isinstance(cause, kind) or any(sign in str(cause) for sign in DEVICE_SIGNS) for cause in causes)


def round_ending_error(error: BaseException, *, asked: bool = False) -> BaseException | None:
    """Return the error of a collective, or the `LeftRoundError`, behind an error; None if the script itself has failed.

    It may be the error itself, its cause or its context, or all errors of an exception group. Errors of a GPU, and
    exceptions that end the process on purpose, such as `SystemExit`, never end a round. `asked` says whether nodeclient
    has asked the worker to leave.
    """
    return None if is_device_error(error) else _find_ending_error(error, set(), asked=asked)


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its causes and contexts, and the errors of groups among them, each once."""
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            yield current
            pending += [current.__cause__, current.__context__]
            pending += current.exceptions if isinstance(current, BaseExceptionGroup) else ()


def _find_ending_error(error: BaseException | None, seen: set[int], *, asked: bool) -> BaseException | None:
    from workerlib.keeping.kept_errors import LeftRoundError

    if error is None or id(error) in seen:
        return None
    seen.add(id(error))
    if isinstance(error, LeftRoundError) or is_collective_error(error, asked=asked):
        return error
    if isinstance(error, BaseExceptionGroup):
        # Each search has its own copy of `seen`: errors of a group may be the same one, or have the same cause.
        ends = [_find_ending_error(inner, set(seen), asked=asked) for inner in error.exceptions]
        return ends[0] if all(ends) else None  # one of them may be the script's own
    if not isinstance(error, Exception):
        return None
    shown = None if error.__suppress_context__ else error.__context__
    return _find_ending_error(error.__cause__, seen, asked=asked) or _find_ending_error(shown, seen, asked=asked)


def clear_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and its causes, whose local variables hold objects of this round."""
    for one in _with_causes(error):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None


def freeze_objects() -> None:
    """Leave all present objects out of garbage collections, so that those at the end of each round are fast.

    If such objects become a garbage cycle later, they stay. A warm worker inherits the frozen objects of its parent and
    has few others, so nothing is done in it.
    """
    global _has_frozen  # noqa: PLW0603 - a process has one collector
    if len(gc.get_objects()) >= MANY_OBJECTS:
        gc.collect()
        gc.freeze()
        _has_frozen = True


def unfreeze_objects() -> None:
    """Undo `freeze_objects`, so that Python closes all files and calls all destructors at its end."""
    global _has_frozen  # noqa: PLW0603 - as above
    if _has_frozen:
        gc.unfreeze()
        _has_frozen = False


def destroy_groups() -> None:
    """Destroy all process groups, and remove the hooks of models wrapped in DistributedDataParallel.

    If the script still has such a model, its hooks would run for the next round's gradients, with a group that is gone.
    """
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel

    for wrapped in gc.get_objects():
        if issubclass(type(wrapped), DistributedDataParallel):  # `isinstance` fails for a weak proxy of a dead object
            wrapped._remove_autograd_hooks()  # noqa: SLF001 - torch removes them so itself, without a public name
    gloo.let_threads_finish()  # before the collection, which may destroy a group
    gc.collect()  # a wrapped model that was dropped is a cycle, which holds its group
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        gloo.let_threads_finish()  # a wrapped model that the script still has destroys its group later


def has_mesh() -> bool:
    """Whether the script has a device mesh, whose process groups are those of the round that has ended."""
    meshes = sys.modules.get("torch.distributed.device_mesh")
    kind = getattr(meshes, "DeviceMesh", None)
    return kind is not None and any(issubclass(type(found), kind) for found in gc.get_objects())  # as above


def reset_compiled() -> None:
    """Have torch compile everything again: compiled code may have ranks and the world size as constants."""
    import torch

    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # noqa: SLF001 - it does the same as `torch.compiler.reset`, but imports nothing


def abort_obstacle() -> str:
    """Return why `abort_collectives` cannot abort the groups that there are; empty if it can."""
    from torch.distributed import distributed_c10d

    from workerlib.keeping.gate import TorchGroups

    if hasattr(distributed_c10d, "_abort_process_group") or not TorchGroups().nccl_groups():
        return ""
    return "this release of torch cannot abort collectives of NCCL: 2.6 can"


def abort_collectives() -> None:
    """Abort the collectives of NCCL in which this process waits, and remove all process groups."""
    from torch.distributed import distributed_c10d

    with suppress(ValueError, AssertionError, RuntimeError):  # the script is making a group at this moment
        distributed_c10d._abort_process_group()  # noqa: SLF001 - experimental, without a public name
