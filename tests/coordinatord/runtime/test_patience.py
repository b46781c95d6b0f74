"""What waits is given up in its turn, by one timer."""

from __future__ import annotations

import asyncio

import pytest

from coordinatord.runtime.patience import Patience
from tests.support.programs import TIMEOUT_S

pytestmark = pytest.mark.asyncio


async def given_up(patience: Patience[str], found: list[str], count: int) -> None:
    """Wait until so many have been given up."""
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:  # noqa: ASYNC110 - what is looked at announces nothing
            await asyncio.sleep(0.001)
    patience.close()


async def test_who_waits_too_long_is_given_up_the_oldest_first() -> None:
    found: list[str] = []
    patience = Patience[str](0.01, found.append)
    for name in "abc":
        patience.add(name)
    assert patience.discard("b")
    assert not patience.discard("b")
    await given_up(patience, found, 2)
    assert (found, len(patience)) == (["a", "c"], 0)


async def test_who_comes_while_others_are_given_up_waits_as_long_as_they() -> None:
    found: list[str] = []
    again = ["b"]

    def give_up(name: str) -> None:
        found.append(name)
        if again:
            patience.add(again.pop())

    patience = Patience[str](0.01, give_up)
    patience.add("a")
    await given_up(patience, found, 2)
    assert found == ["a", "b"]


async def test_the_oldest_can_be_given_up_before_its_time() -> None:
    found: list[str] = []
    patience = Patience[str](3_600.0, found.append)
    patience.give_up_oldest()
    patience.add("a")
    patience.add("b")
    patience.give_up_oldest()
    assert (found, list(patience)) == (["a"], ["b"])
    patience.close()
