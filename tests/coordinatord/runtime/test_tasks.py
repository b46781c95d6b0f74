"""Background tasks and their owner."""

import asyncio
import os
from collections.abc import Callable

import pytest
import uvloop

from coordinatord.runtime.tasks import Tasks


async def test_the_owner_hears_of_a_task_that_fails() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    tasks = Tasks()
    wanted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    tasks.spawn(fail(), name="fails")
    with pytest.raises(ValueError, match="broken"):
        await tasks.guard(wanted)


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


async def guarded_with(call_back: Callable[[asyncio.AbstractEventLoop, asyncio.Future[str]], object]) -> str:
    """Return how an owner ends that waits for a result, or else why it fails."""
    loop = asyncio.get_running_loop()
    wanted: asyncio.Future[str] = loop.create_future()
    call_back(loop, wanted)
    try:
        return await Tasks().guard(wanted)
    except ValueError as error:
        return f"failed: {error}"


def fail(*_: object) -> None:
    raise ValueError("broken")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("way", ["soon", "later", "reader", "threadsafe"])
def test_the_owner_hears_of_a_callback_that_fails(new_loop: Callable[[], asyncio.AbstractEventLoop], way: str) -> None:
    reading, writing = os.pipe()
    os.close(writing)

    def call_back(loop: asyncio.AbstractEventLoop, _: asyncio.Future[str]) -> None:
        match way:
            case "soon":
                loop.call_soon(fail)
            case "later":
                loop.call_later(0, fail)
            case "reader":
                loop.add_reader(reading, fail)
            case _:
                loop.call_soon_threadsafe(fail)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(guarded_with(call_back)) == "failed: broken"
        runner.get_loop().remove_reader(reading)
    os.close(reading)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_goes_wrong_with_a_connection_of_the_library_s_ends_that_alone(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    library: dict[str, Callable[..., None]] = {}
    exec("def lose(): raise ValueError('the library is broken')", {"__name__": "aiohttp.some_module"}, library)  # noqa: S102

    def call_back(loop: asyncio.AbstractEventLoop, wanted: asyncio.Future[str]) -> None:
        loop.call_soon(library["lose"])
        loop.call_later(0.001, wanted.set_result, "served")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(guarded_with(call_back)) == "served"
    assert "the library is broken" in caplog.text
