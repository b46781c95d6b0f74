"""What the decorator for rounds refuses: a function whose steps would be done when its round is over."""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from workerlib import Context, elastic


def yields(_: Context) -> Iterator[int]:
    yield 1


async def waits(_: Context) -> None:
    pass


async def does_both(_: Context) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [yields, waits, does_both, staticmethod(yields)])
def test_a_function_that_only_makes_a_generator_or_a_coroutine_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="the round would be over before its first step"):
        elastic(function)
    with pytest.raises(TypeError, match="its first step"):
        elastic(backend="gloo")(function)


def test_a_function_that_waits_for_a_coroutine_itself_is_taken() -> None:
    @functools.wraps(waits)
    def runs(ctx: Context) -> None:
        asyncio.run(waits(ctx))

    assert elastic(runs).__name__ == "waits"


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="str"):
        elastic("gloo")  # type: ignore[call-overload]
