"""Removes what a round has left behind in a process that goes on: process groups, and what is bound to them."""

# ruff: noqa: PLC0415  # importing workerlib stays cheap, and possible without torch

from __future__ import annotations

import gc
import sys
import traceback
from contextlib import suppress

from workerlib import gloo

COLLECTIVE_SIGNS = ("gloo/", "ProcessGroup", "NCCL error", "ncclRemoteError", "Connection closed by peer")
"""What torch writes into the `RuntimeError` of a collective that failed, where it has no class of its own for it."""


def is_of_collective(error: BaseException) -> bool:
    """Whether a collective has failed, or a process group could not be made: the fault is not in this worker."""
    import torch.distributed

    if isinstance(error, torch.distributed.DistError):
        return True
    return type(error) is RuntimeError and any(sign in str(error) for sign in COLLECTIVE_SIGNS)


def end_of_round(error: BaseException) -> BaseException | None:
    """Return the error that ends the round for this worker, whatever a script has made of it; None for any other one.

    It is an error of a collective, or `LeftRoundError`: the error itself, what it was raised from, or what was being
    handled when it was raised; or all that an exception group holds. What ends the process on purpose, such as
    `SystemExit`, is the script's own whatever stands behind it.
    """
    return _end_in(error, set())


def _end_in(error: BaseException | None, seen: set[int]) -> BaseException | None:
    from workerlib.keep.kept_errors import LeftRoundError

    if error is None or id(error) in seen:
        return None
    seen.add(id(error))
    if isinstance(error, LeftRoundError) or is_of_collective(error):
        return error
    if isinstance(error, BaseExceptionGroup):
        ends = [_end_in(inner, seen) for inner in error.exceptions]
        return ends[0] if all(ends) else None
    if not isinstance(error, Exception):
        return None
    shown = None if error.__suppress_context__ else error.__context__
    return _end_in(error.__cause__, seen) or _end_in(shown, seen)


def forget_frames(error: BaseException | None) -> None:
    """Drop what the functions that an error has left hold, such as a model of this round."""
    rest: list[BaseException | None] = [error]
    seen = set[int]()
    while rest:
        current = rest.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        traceback.clear_frames(current.__traceback__)
        current.__traceback__ = None
        rest += [current.__cause__, current.__context__]
        rest += current.exceptions if isinstance(current, BaseExceptionGroup) else ()


def set_aside() -> None:
    """Leave all objects of now out of garbage collections: torch alone has 200,000, and each end of a round collects.

    What is garbage among them by now is collected before; what becomes a cycle of garbage later stays.
    """
    gc.collect()
    gc.freeze()


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


def forget_compiled() -> None:
    """Have all that is compiled compiled anew: the ranks and the number of workers may be constants in it."""
    import torch

    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # noqa: SLF001 - torch's own name for what `torch.compiler.reset` does, but imports nothing


def abort_collectives() -> None:
    """Make the collectives of NCCL fail in which this process waits, if it has any; gloo's have no such way.

    The main thread may destroy its process groups meanwhile.
    """
    import torch.distributed
    from torch.distributed import distributed_c10d

    with suppress(ValueError):  # torch's word for a group that is not there any more
        if torch.distributed.is_initialized() and "nccl" in torch.distributed.get_backend():
            distributed_c10d._abort_process_group()  # noqa: SLF001 - experimental, without a public name
