"""Many effects are carried out in turns of the loop, and each session hears its newest word last."""

import asyncio

from coordinatord.core.rounds.effects import Close, Effect, ReportDegraded
from coordinatord.protocol.messages import Degraded
from coordinatord.server.driver import EFFECTS_AT_ONCE, PacedEffects
from tests.support.raw_session import until

MANY = tuple(Close(session) for session in range(3 * EFFECTS_AT_ONCE + 1))


FULL = Degraded("the disk is full")


class Refusing(Close, frozen=True):
    """Another effect for a session."""


async def test_others_are_served_between_two_pieces() -> None:
    done: list[Effect] = []
    PacedEffects(done.append, lambda: True).carry_out_in_pieces(MANY)
    seen = []
    while len(done) < len(MANY):
        seen.append(len(done))
        await asyncio.sleep(0)
    assert seen == [EFFECTS_AT_ONCE, 2 * EFFECTS_AT_ONCE, 3 * EFFECTS_AT_ONCE]
    assert done == list(MANY)


async def test_a_newer_effect_takes_the_place_of_one_that_waits_and_others_pass_at_once() -> None:
    done: list[Effect] = []
    paced = PacedEffects(done.append, lambda: True)
    paced.carry_out_in_pieces(MANY)
    last, nobody = len(MANY) - 1, len(MANY)
    newer, other = Refusing(last), Close(nobody)
    paced.carry_out((newer, other, Close(0)))
    assert done[-2:] == [other, Close(0)]
    await until(lambda: len(done) == len(MANY) + 2)
    assert [effect for effect in done if effect.session == last] == [newer]
    assert done[-1] is newer


async def test_a_failing_store_takes_the_place_of_no_effect_that_waits() -> None:
    done: list[Effect] = []
    paced = PacedEffects(done.append, lambda: True)
    paced.carry_out_in_pieces(MANY)
    reports = ReportDegraded(0, FULL), ReportDegraded(len(MANY) - 1, FULL)
    paced.carry_out(reports)
    assert done[-1] is reports[0]
    await until(lambda: len(done) == len(MANY) + 1)
    assert reports[1] not in done


async def test_what_comes_in_a_second_lot_is_carried_out_once_and_is_the_newest() -> None:
    done: list[Effect] = []
    paced = PacedEffects(done.append, lambda: True)
    paced.carry_out_in_pieces(MANY)
    newer = Refusing(len(MANY) - 1)
    paced.carry_out_in_pieces((newer, Close(-1)))
    await until(lambda: len(done) == len(MANY) + 1)
    assert [effect for effect in done if effect.session == newer.session] == [newer]
    await asyncio.sleep(0)
    assert len(done) == len(MANY) + 1


async def test_nothing_more_is_said_once_that_may_not_be() -> None:
    done: list[Effect] = []
    paced = PacedEffects(done.append, lambda: len(done) < 2 * EFFECTS_AT_ONCE)
    paced.carry_out_in_pieces(MANY)
    for _ in range(4):
        await asyncio.sleep(0)
    assert done == list(MANY[: 2 * EFFECTS_AT_ONCE])
    paced.carry_out((Close(len(MANY) - 1),))
    assert done[-1] == Close(len(MANY) - 1)
