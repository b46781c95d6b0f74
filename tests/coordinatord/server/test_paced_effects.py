"""Many effects are carried out in turns of the loop, and each session hears its newest word last."""

from __future__ import annotations

import asyncio

import pytest

from coordinatord.core.effects import Close, Effect
from coordinatord.server.paced_effects import PIECE, PacedEffects

pytestmark = pytest.mark.asyncio

MANY = tuple(Close(session) for session in range(3 * PIECE + 1))


class Refusing(Close):
    """Another effect for a session."""


async def test_others_are_served_between_two_pieces() -> None:
    done: list[Effect] = []
    paced = PacedEffects(done.append)
    all_out = asyncio.ensure_future(paced.put_all(MANY))
    seen: list[int] = []
    while not all_out.done():
        seen.append(len(done))
        await asyncio.sleep(0)
    assert set(range(0, len(MANY), PIECE)) <= set(seen)
    assert done == list(MANY)


async def test_a_newer_effect_takes_the_place_of_one_that_waits_and_others_pass_at_once() -> None:
    done: list[Effect] = []
    paced = PacedEffects(done.append)
    all_out = asyncio.ensure_future(paced.put_all(MANY))
    await asyncio.sleep(0)
    last, nobody = len(MANY) - 1, len(MANY)
    newer, other = Refusing(last), Close(nobody)
    paced.put((newer, other, Close(0)))
    assert done[-2:] == [other, Close(0)]
    await all_out
    assert [effect for effect in done if effect.session == last] == [newer]
    assert done[-1] is newer


async def test_what_comes_in_a_second_lot_is_carried_out_as_well() -> None:
    done: list[Effect] = []
    paced = PacedEffects(done.append)
    await asyncio.gather(paced.put_all(MANY), paced.put_all((Close(-1),)))
    assert sorted(effect.session for effect in done) == [-1, *range(len(MANY))]
