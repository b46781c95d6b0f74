"""The hooks by which a keeper is called: by optimizers and modules, at `ctx.step`, in a fork, and at process exit.

A process keeps one state at a time. With rounds in place, each round has another keeper, and the hooks of the earlier
one are removed.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.optim.optimizer import register_optimizer_step_pre_hook

from workerlib import progress


class ProcessHooks:
    """Registers and removes the hooks of one keeper."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        """torch's handles of the hooks, each with a `remove`."""
        self.in_child: Callable[[], None] | None = None
        """Called in each child that this process forks."""
        self.at_exit: Callable[..., None] | None = None
        """Called at the exit of this process."""

    def before_optimizers(self, call: Callable[..., Any]) -> None:
        """Have `call` called before each step of any optimizer. In a compiled step, it causes a graph break."""

        @_disable_dynamo  # `torch.compiler.disable` would import torch._dynamo at once, which takes a second
        def hook(*args: Any) -> Any:
            return call(*args)

        self._handles.append(register_optimizer_step_pre_hook(hook))

    def after_forward(self, modules: Iterable[torch.nn.Module], call: Callable[..., Any]) -> None:
        """Have `call` called after each forward of these modules."""
        self._handles += [hooked_module(module).register_forward_hook(call) for module in modules]

    def in_process(
        self, step: Callable[[int], None], at_exit: Callable[..., None], in_child: Callable[[], None]
    ) -> None:
        """Have functions called with each reported step, at the exit of this process, and in children that it forks.

        `at_exit` takes the argument `failed`: whether an error ends this process.
        """
        global _current  # noqa: PLW0603 - see the module
        if _current is None:
            os.register_at_fork(after_in_child=_call_in_child)  # which cannot be undone
            atexit.register(_call_at_exit)
        _current = self
        self.at_exit, self.in_child = at_exit, in_child
        progress.notify(step)

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.in_child = self.at_exit = None
        progress.notify(None)


_current: ProcessHooks | None = None
"""The hooks of this process's newest keeper; None before the first one."""


def _call_in_child() -> None:
    if _current is not None and _current.in_child is not None:
        _current.in_child()


def _call_at_exit() -> None:
    if _current is not None and _current.at_exit is not None:
        _current.at_exit(failed=hasattr(sys, "last_value"))


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

    The closure runs forward and backward. torch's own optimizers change nothing before it first returns; others may,
    such as sharpness-aware ones (SAM).
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
