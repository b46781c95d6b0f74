"""The hooks by which a keeper is called: by optimizers and modules, at `ctx.step`, and at process exit.

A script passes its objects to `ctx.keep` only once, and tells nothing more than its steps. By hooks the keeper learns
when parameters change and when this rank may have contributed to a step. With rounds in place, each round has another
keeper, and the hooks of the earlier one are removed.
"""

from __future__ import annotations

import atexit
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import chain, pairwise
from types import FrameType
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.optim.optimizer import register_optimizer_step_pre_hook

from workerlib import progress


class ProcessHooks:
    """Registers and removes the hooks of one keeper."""

    def __init__(self) -> None:
        self._registered = ExitStack()
        """Undoes what is registered."""

    def before_optimizers(self, call: Callable[..., Any]) -> None:
        """Have `call` called before each step of any optimizer. In a compiled step, it causes a graph break."""

        @_disable_dynamo  # `torch.compiler.disable` would import torch._dynamo at once, which takes a second
        def hook(*args: Any) -> Any:
            return call(*args)

        self._registered.callback(register_optimizer_step_pre_hook(hook).remove)

    def after_forward(self, modules: Iterable[torch.nn.Module], call: Callable[..., Any]) -> None:
        """Have `call` called after each forward of these modules."""
        for module in modules:
            self._registered.callback(hooked_module(module).register_forward_hook(call).remove)

    def in_process(self, step: Callable[[int], None], close: Callable[..., None]) -> None:
        """Have functions called with each reported step, and at the exit of this process.

        `close` takes the argument `failed`: whether an error ends this process.
        """

        def at_exit() -> None:
            close(failed=has_failed(getattr(sys, "last_value", None)))  # Python sets it when it prints an error

        atexit.register(at_exit)
        self._registered.callback(atexit.unregister, at_exit)
        progress.set_step_hook(step)
        self._registered.callback(progress.set_step_hook, None)

    def remove(self) -> None:
        """Remove all hooks."""
        self._registered.close()


def has_failed(error: BaseException | None) -> bool:
    """Whether an exception that ends the script is a failure, after which the state may be that of no step.

    `SystemExit` with 0 is none, unless the script has caught an error before, or a signal handler of it exits: either
    may come within a step.
    """
    if not isinstance(error, SystemExit):
        return error is not None
    if (error.code is not None and error.code != 0) or error.__context__ is not None:
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(_has_interrupted(called, frame) for frame, called in pairwise(frames))


def _has_interrupted(called: FrameType, frame: FrameType) -> bool:
    """Whether a frame is that of a signal handler, which gets the frame that it interrupts as an argument."""
    values = list(called.f_locals.values())
    arguments = chain(values, *(value for value in values if type(value) is tuple))  # as of `lambda *_: ...`
    return any(argument is frame for argument in arguments)


def hooked_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module whose forward gets a hook: the one within DDP, which scripts also call directly."""
    inner = getattr(module, "module", None) if type(module).__name__ == "DistributedDataParallel" else None
    return inner if isinstance(inner, torch.nn.Module) and not _is_compiled(inner) else module


def _is_compiled(module: torch.nn.Module) -> bool:
    """Whether a module is compiled: if another module calls it, its own hooks do not run."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def after_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return an optimizer's arguments with a closure that ends with `call`; None if `call` must come before the step.

    A closure runs forward and backward, whose collectives may hang when a peer dies. torch's own optimizers change
    nothing before the closure first returns, so the last step can still be saved until then, and `call` comes only
    then. Other optimizers may change parameters before, such as sharpness-aware ones (SAM).
    """
    optimizer, *others = args
    closure = others[0] if others else kwargs.get("closure")
    if not callable(closure) or not type(optimizer).__module__.startswith("torch.optim."):
        return None

    def followed() -> Any:
        result = closure()
        call()
        return result

    return ((optimizer, followed, *others[1:]), kwargs) if others else (args, {**kwargs, "closure": followed})
