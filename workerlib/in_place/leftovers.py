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
"""What torch writes into the `RuntimeError` of a collective that failed, where it has no class of its own for it."""


DEVICE_SIGNS = ("CUDA error", "Cuda failure", "unhandled cuda error", "HIP error", "unhandled hip error")
"""What stands in an error of the GPU, also where NCCL was the first to meet it: no later call of this process works."""

GONE_SIGNS = ("process group has not been initialized", "Invalid process group specified", "is not registered")
"""What torch writes into the `ValueError` of a call about a group that `abort_collectives` has removed."""

_is_set_aside = False
"""Whether `set_aside` has set objects aside that this process made itself."""


def is_of_collective(error: BaseException, *, asked: bool = False) -> bool:
    """Whether a collective has failed, or a process group could not be made: the fault is not in this worker.

    If it was `asked` to leave, a group may be gone that it was about to use.
    """
    import torch.distributed

    if isinstance(error, torch.distributed.DistError):
        return True
    if asked and type(error) is ValueError and any(sign in str(error) for sign in GONE_SIGNS):
        return True
    return type(error) is RuntimeError and any(sign in str(error) for sign in COLLECTIVE_SIGNS)


def is_of_device(error: BaseException) -> bool:
    """Whether a GPU has failed in this error, or in any that led to it."""
    import torch

    kind = getattr(torch, "AcceleratorError", ())  # torch 2.7 has none
    found = (isinstance(one, kind) or any(sign in str(one) for sign in DEVICE_SIGNS) for one in _all_behind(error))
    return any(found)


def end_of_round(error: BaseException, *, asked: bool = False) -> BaseException | None:
    """Return the error that ends the round for this worker, whatever a script has made of it; None for any other one.

    It is an error of a collective, or `LeftRoundError`: the error itself, what it was raised from, or what was being
    handled when it was raised; or all that an exception group holds. What ends the process on purpose, such as
    `SystemExit`, is the script's own whatever stands behind it. So is any in which a GPU has failed. More errors do if
    the worker was `asked` to leave.
    """
    return None if is_of_device(error) else _end_in(error, set(), asked=asked)


def _all_behind(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and all that led to it or that it holds, each once."""
    rest, seen = [error], set[int]()
    while rest:
        current = rest.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            yield current
            rest += [current.__cause__, current.__context__]
            rest += current.exceptions if isinstance(current, BaseExceptionGroup) else ()


def _end_in(error: BaseException | None, seen: set[int], *, asked: bool) -> BaseException | None:
    from workerlib.keep.kept_errors import LeftRoundError

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
    """Drop what the functions that an error has left hold, such as a model of this round."""
    for one in _all_behind(error):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None


def set_aside() -> None:
    """Leave all objects of now out of garbage collections: torch alone has 200,000, and each end of a round collects.

    What is garbage among them by now is collected before; what becomes a cycle of garbage later stays. In a warm worker
    the modules of its parent are set aside already.
    """
    global _is_set_aside  # noqa: PLW0603 - as there is one collector
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
        _is_set_aside = True


def take_back() -> None:
    """Take back what `set_aside` did, so that the end of Python closes all files and calls all destructors."""
    global _is_set_aside  # noqa: PLW0603 - as above
    if _is_set_aside:
        gc.unfreeze()
        _is_set_aside = False


def end_groups() -> None:
    """Destroy all process groups, and part the parameters from the models that were wrapped for them.

    A script may still hold such a model, in a variable that its next round sets anew. Its hooks would answer the
    gradients of the next round's model, for a group that is gone.
    """
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel

    for wrapped in gc.get_objects():
        if issubclass(type(wrapped), DistributedDataParallel):
            wrapped._remove_autograd_hooks()  # noqa: SLF001 - torch's own way to take them off, without a public name
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
    """Have all that is compiled compiled anew: the ranks and the number of workers may be constants in it."""
    import torch

    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # noqa: SLF001 - torch's own name for what `torch.compiler.reset` does, but imports nothing


def abort_collectives() -> None:
    """Make the collectives of NCCL fail in which this process waits, if it has any; gloo's have no such way.

    The main thread may destroy its process groups meanwhile.
    """
    from torch.distributed import distributed_c10d

    with suppress(ValueError, AssertionError, RuntimeError):  # a group is not there any more, or is just being made
        backends = [str(backend) for backend, _ in distributed_c10d._world.pg_map.values()]  # noqa: SLF001
        if any("nccl" in backend for backend in backends):
            distributed_c10d._abort_process_group()  # noqa: SLF001 - experimental, without a public name
