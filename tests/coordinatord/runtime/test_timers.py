"""What waits is given up in its turn, by one timer."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from coordinatord.runtime.timers import DeadlineTimer, Timeouts
from tests.support.programs import TIMEOUT_S


async def given_up(timeouts: Timeouts[str], found: list[str], count: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:  # noqa: ASYNC110 - what is looked at announces nothing
            await asyncio.sleep(0.001)
    timeouts.close()


async def test_who_waits_too_long_is_given_up_the_oldest_first() -> None:
    found: list[str] = []
    timeouts = Timeouts[str](0.01, found.append)
    for name in "abc":
        timeouts.add(name)
    timeouts.discard("b")
    timeouts.discard("b")
    await given_up(timeouts, found, 2)
    assert (found, len(timeouts)) == (["a", "c"], 0)


async def test_who_comes_while_others_are_given_up_waits_as_long_as_they() -> None:
    found: list[str] = []
    again = ["b"]

    def give_up(name: str) -> None:
        found.append(name)
        if again:
            timeouts.add(again.pop())

    timeouts = Timeouts[str](0.01, give_up)
    timeouts.add("a")
    await given_up(timeouts, found, 2)
    assert found == ["a", "b"]


async def test_a_callback_that_fails_stops_no_later_timeout() -> None:
    found: list[str] = []
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))

    def give_up(name: str) -> None:
        found.append(name)
        if name == "a":
            raise RuntimeError

    timeouts = Timeouts[str](0.01, give_up)
    timeouts.add("a")
    timeouts.add("b")
    await given_up(timeouts, found, 2)
    assert (found, len(failures)) == (["a", "b"], 1)


async def test_who_waits_for_some_time_can_be_given_up_before_the_end_of_it() -> None:
    found: list[str] = []
    timeouts = Timeouts[str](3_600.0, found.append)
    for name in "ab":
        timeouts.add(name)
    timeouts.expire_older(60.0)
    assert not found
    timeouts.expire_older(0.0)
    assert (found, len(timeouts)) == (["a", "b"], 0)
    timeouts.close()


LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("new_loop", LOOPS)
def test_it_never_calls_back_with_a_time_before_the_armed_one(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for step in range(50):
            fired: asyncio.Future[float] = loop.create_future()
            at = loop.time() + step * 0.000_13
            DeadlineTimer(loop, fired.set_result).arm(at)
            assert await fired >= at

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


async def test_arming_anew_replaces_the_old_deadline() -> None:
    loop = asyncio.get_running_loop()
    fired: asyncio.Queue[float] = asyncio.Queue()
    timer = DeadlineTimer(loop, fired.put_nowait)
    sooner, later = loop.time() + 0.001, loop.time() + 0.02
    timer.arm(sooner)
    timer.arm(later)
    assert await fired.get() >= later
    assert fired.empty()


async def test_disarmed_it_does_not_call_back() -> None:
    loop = asyncio.get_running_loop()
    fired: list[float] = []
    timer = DeadlineTimer(loop, fired.append)
    timer.arm(loop.time() + 0.001)
    timer.arm(None)
    witness = loop.create_future()
    loop.call_at(loop.time() + 0.01, witness.set_result, None)
    await witness
    assert fired == []
