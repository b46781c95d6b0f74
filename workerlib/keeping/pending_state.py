"""Saves the small state within a step: from the end of a forward on, this rank may contribute to the step.

The others may then complete the step without this rank, so its own state at the end of the step must be known. After an
optimizer's step only a forward with gradients counts, such as that of a second network, since it may contribute as
well. An evaluation there contributes to nothing, and if a rank dies in it, its state is that of no step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from workerlib.contract.arena import Commit
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.small_state import SmallStates


class PendingStates:
    """Writes the small state of the current step, before it is done."""

    def __init__(self, small: SmallStates, ring: threading.Lock, commit: Callable[[], Commit]) -> None:
        """Begin. `ring` is held while a small state is written, and `commit` returns the commit of the current step."""
        self._small = small
        self._ring = ring
        self._commit = commit

    def note_forward(self, *, with_gradients: bool, optimized: bool) -> None:
        """Save the state after a forward; `optimized` says that an optimizer has done its step."""
        if with_gradients or (self._small.is_pending and not optimized):
            self.write()

    def write(self) -> None:
        """Write the present small state."""
        try:
            taken = self._small.take_pending()
        except KeptStateError:
            return  # the end of the step reports it
        with self._ring:
            self._small.write(taken, self._commit())


def hooked(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module whose forward gets a hook: the one within DDP, which scripts also call directly."""
    inner = getattr(module, "module", None) if type(module).__name__ == "DistributedDataParallel" else None
    return inner if isinstance(inner, torch.nn.Module) and not _is_compiled(inner) else module


def _is_compiled(module: torch.nn.Module) -> bool:
    """Whether a module's own hooks do not run where another module calls it: they are left out of compiled code."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def after_closure(
    given: tuple[Any, ...], named: dict[str, Any], call: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return an optimizer's arguments with a closure that is followed by `call`; None if they have no closure.

    Forward and backward are in the closure then, and torch's own optimizers change nothing before it has returned for
    the first time. Other optimizers may, such as those that minimise sharpness.
    """
    optimizer, *others = given
    closure = others[0] if others else named.get("closure")
    if not callable(closure) or not type(optimizer).__module__.startswith("torch.optim."):
        return None

    def followed() -> Any:
        result = closure()
        call()
        return result

    return ((optimizer, followed, *others[1:]), named) if others else (given, {**named, "closure": followed})
