"""Background tasks and their owner."""

from __future__ import annotations

import asyncio

import pytest

from coordinatord.shared.tasks import Tasks


@pytest.mark.asyncio
async def test_the_owner_hears_of_a_task_that_fails() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    tasks = Tasks()
    wanted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    tasks.spawn(fail(), name="fails")
    with pytest.raises(ValueError, match="broken"):
        await tasks.guard(wanted)


@pytest.mark.asyncio
async def test_the_owner_gets_the_result_that_it_waits_for() -> None:
    tasks = Tasks()
    wanted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def give() -> None:
        wanted.set_result(7)

    tasks.spawn(give(), name="gives")
    assert await tasks.guard(wanted) == 7


@pytest.mark.asyncio
async def test_cancel_waits_until_every_task_has_ended() -> None:
    ended = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    tasks = Tasks()
    task = tasks.spawn(wait_for_ever(), name="waits")
    await asyncio.sleep(0)
    await tasks.cancel()
    assert task.cancelled()
    assert ended == ["cleaned up"]
