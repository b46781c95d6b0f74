"""Calls a script's function again with each round: in the same process where that can be, else in a new one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from workerlib.in_place import staying_worker
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

    The `with` statement ends early when the round does, and the loop goes on with the next one; it is over when the
    block comes to its end. What belongs to a round, such as a wrapped model or a loader of data, is made in the block.
    What outlives it is given to `ctx.keep`, which brings it to the state that all workers of the next round begin with.
    So nothing depends on whether a round is begun in the same process or in a new one: that is only faster.
    docs/rounds-in-place.md says when it is.
    """
    staying = staying_worker.connect()
    try:
        while True:
            try:
                ctx = begin(backend, timeout, steps=steps, staying=staying)
            except BaseException as error:
                if staying is None or not staying.leaves(error):
                    raise
            else:
                yield ctx
                if staying is None or not staying.has_left:
                    ctx.close()
                    return
                del ctx
            staying.take_next_round()
    finally:
        if staying is not None:
            staying.end()


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

    What it returns then is the result of the call; further arguments of the call are passed on each time. It is the
    same as the loop of `rounds`, whose rules hold.
    """
    if function is None:
        return functools.partial(elastic, backend=backend, timeout=timeout, steps=steps)

    @functools.wraps(function)
    def train(*args: P.args, **kwargs: P.kwargs) -> R:
        for ctx in rounds(backend, timeout, steps=steps):
            with ctx:
                return function(ctx, *args, **kwargs)
        raise AssertionError("the loop of rounds ends when a block does")

    return train
