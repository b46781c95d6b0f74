"""The deadline timer on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from coordinatord.runtime.deadline_timer import DeadlineTimer

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


@pytest.mark.asyncio
async def test_arming_anew_replaces_the_old_deadline() -> None:
    loop = asyncio.get_running_loop()
    fired: asyncio.Queue[float] = asyncio.Queue()
    timer = DeadlineTimer(loop, fired.put_nowait)
    sooner, later = loop.time() + 0.001, loop.time() + 0.02
    timer.arm(sooner)
    timer.arm(later)
    assert await fired.get() >= later
    assert fired.empty()


@pytest.mark.asyncio
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
