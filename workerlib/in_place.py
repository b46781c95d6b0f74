"""`rounds` and `elastic`: run a script's training again in each round, in the same process if possible.

`init.begin` makes the context of each round, and `reuse` takes the process from one round into the next one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from workerlib.init import Context, begin

if TYPE_CHECKING:
    from datetime import timedelta

P = ParamSpec("P")
R = TypeVar("R")

Body = Callable[Concatenate[Context, P], R]


def rounds(backend: str | None = None, timeout: timedelta | None = None, *, steps: bool = True) -> Iterator[Context]:
    """Yield a context for each round that this process takes part in; the arguments are those of `init`.

        model, optimizer = ...
        for ctx in workerlib.rounds():
            with ctx:
                ddp = DistributedDataParallel(model)
                for step in range(ctx.keep(model=model, optimizer=optimizer) + 1, last):
                    ...
                    ctx.step(step)

    When the round ends, an error ends the `with` block, which catches it, and the loop goes on with the next round.
    After a block that runs to its end, the loop is over. Objects of one round, such as a wrapped model or a data
    loader, are made in the block. Objects that outlive a round are passed to `ctx.keep`, which restores the state that
    all workers of the next round begin with. So a round has the same result in the same process and in a new one. The
    same process is only faster; docs/rounds-in-place.md has the conditions.
    """
    from workerlib.reuse import reused_worker  # noqa: PLC0415 - only a script with rounds in place pays for the import

    reuse = reused_worker.connect()
    try:
        while True:
            try:
                ctx = begin(backend, timeout, steps=steps, reuse=reuse)
            except BaseException as error:
                if reuse is None or not reuse.leave_after(error):
                    raise
            else:
                yield ctx  # if an error ends the round in the block, `Context.__exit__` calls `leave_after`
                if reuse is None or not reuse.has_left:
                    ctx.close()  # in case that the body of the loop has no `with` block
                    return
            reuse.enter_next_round()
    finally:
        if reuse is not None:
            reuse.end()


@overload
def elastic(function: Body[P, R], /) -> Callable[P, R]: ...


@overload
def elastic(
    *, backend: str | None = None, timeout: timedelta | None = None, steps: bool = True
) -> Callable[[Body[P, R]], Callable[P, R]]: ...


def elastic(
    function: Body[P, R] | None = None,
    /,
    *,
    backend: str | None = None,
    timeout: timedelta | None = None,
    steps: bool = True,
) -> Any:
    """Decorate a function that trains: it is called with the context of each round, until it returns.

    The call passes its arguments on each time, and returns the last result. The rules are those of `rounds`. Raises
    `TypeError` for a generator function or a coroutine function: its body would run only after the call.
    """
    if function is None:
        return functools.partial(elastic, backend=backend, timeout=timeout, steps=steps)
    if not callable(function):
        raise TypeError(f"elastic() decorates a function, not an object of type {type(function).__name__}")
    body = function.__func__ if isinstance(function, staticmethod) else function
    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    if any(is_kind(body) for is_kind in kinds):
        raise TypeError(
            "elastic() decorates a function that trains until it returns, not a generator or coroutine function: "
            "the round would be over before its first step"
        )

    @functools.wraps(function)
    def train(*args: P.args, **kwargs: P.kwargs) -> R:
        for ctx in rounds(backend, timeout, steps=steps):
            with ctx:
                return function(ctx, *args, **kwargs)
        raise AssertionError("unreachable: `rounds` ends only after a block that returns or raises")

    return train
