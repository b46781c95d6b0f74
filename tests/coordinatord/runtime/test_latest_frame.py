"""What is sent last is sent, whatever the sender is doing at that moment."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from coordinatord.runtime.latest_frame import FrameSink, LatestFrame

pytestmark = pytest.mark.asyncio


class SlowSocket:
    """A socket whose sending takes until it is allowed to."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.sending = asyncio.Event()
        self.allowed = asyncio.Event()
        self.closed = False

    async def send_bytes(self, frame: bytes) -> None:
        """Send, late."""
        self.sending.set()
        await self.allowed.wait()
        self.sent.append(frame)

    async def close(self, *, code: int) -> None:
        """Take note."""
        del code
        self.closed = True


async def _carry(latest_frame: LatestFrame, socket: SlowSocket) -> None:
    async with asyncio.timeout(30):
        await latest_frame.empty_into(cast("FrameSink", socket))


async def test_a_last_word_before_the_sender_begins_is_sent() -> None:
    latest_frame, socket = LatestFrame(), SlowSocket()
    latest_frame.close(b"refused")
    socket.allowed.set()
    await _carry(latest_frame, socket)
    assert (socket.sent, socket.closed) == ([b"refused"], True)


async def test_a_last_word_while_another_is_being_sent_is_sent_after_it() -> None:
    latest_frame, socket = LatestFrame(), SlowSocket()
    latest_frame.put(b"first")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_carry(latest_frame, socket))
        await socket.sending.wait()
        latest_frame.put(b"void")
        latest_frame.close(b"refused")
        latest_frame.put(b"too late")
        socket.allowed.set()
    assert socket.sent == [b"first", b"refused"]


async def test_a_newer_word_takes_the_place_of_an_unsent_one() -> None:
    latest_frame, socket = LatestFrame(), SlowSocket()
    latest_frame.put(b"first")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_carry(latest_frame, socket))
        await socket.sending.wait()
        for number in range(1000):
            latest_frame.put(b"%d" % number)
        socket.allowed.set()
        socket.sending.clear()
        await socket.sending.wait()
        latest_frame.close()
    assert socket.sent == [b"first", b"999"]


async def test_the_end_without_a_word_voids_what_is_unsent() -> None:
    latest_frame, socket = LatestFrame(), SlowSocket()
    latest_frame.put(b"void")
    latest_frame.close()
    latest_frame.close(b"ignored")
    await _carry(latest_frame, socket)
    assert (socket.sent, socket.closed) == ([], True)


async def test_what_says_less_takes_no_place() -> None:
    latest_frame, socket = LatestFrame(), SlowSocket()
    latest_frame.put(b"news")
    latest_frame.put_if_empty(b"I live")
    carrying = asyncio.ensure_future(_carry(latest_frame, socket))
    await socket.sending.wait()
    latest_frame.put_if_empty(b"I live")
    socket.allowed.set()
    latest_frame.close()
    await carrying
    assert socket.sent == [b"news"]


class Unsent:
    """A transport that holds so many bytes which the peer has not made room for."""

    def __init__(self, size: int) -> None:
        self.size = size

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes."""
        return self.size


@pytest.mark.parametrize(("unsent", "sender_wakes"), [(0, False), (1, True)])
async def test_an_answer_is_sent_at_once_unless_the_peer_reads_slowly(unsent: int, *, sender_wakes: bool) -> None:
    latest_frame, socket = LatestFrame(), SlowSocket()
    socket.allowed.set()

    def decide() -> None:
        latest_frame.put(b"answer")
        assert not latest_frame._filled.is_set(), "nobody is woken for what is sent at once"

    await latest_frame.answer(decide, cast("FrameSink", socket), cast("asyncio.WriteTransport", Unsent(unsent)))
    assert (socket.sent, latest_frame._filled.is_set()) == ([] if sender_wakes else [b"answer"], sender_wakes)
    latest_frame.close()
    await _carry(latest_frame, socket)
    assert socket.closed


async def test_what_comes_after_the_answer_wakes_the_sender_again() -> None:
    latest_frame, socket = LatestFrame(), SlowSocket()
    socket.allowed.set()
    await latest_frame.answer(lambda: None, cast("FrameSink", socket), cast("asyncio.WriteTransport", Unsent(0)))
    carrying = asyncio.ensure_future(_carry(latest_frame, socket))
    latest_frame.put(b"news")
    await socket.sending.wait()
    latest_frame.close()
    await carrying
    assert socket.sent == [b"news"]


async def test_what_goes_beside_is_sent_in_its_turn_and_then_reported() -> None:
    latest_frame, socket = LatestFrame(), SlowSocket()
    sent: list[int] = []
    latest_frame.put_beside(b"piece 1", lambda: sent.append(1))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_carry(latest_frame, socket))
        await socket.sending.wait()
        assert sent == []
        latest_frame.put_beside(b"piece 2")
        latest_frame.put(b"report")
        socket.allowed.set()
        while len(socket.sent) < 3:  # noqa: ASYNC110 - it announces nothing
            await asyncio.sleep(0)
        latest_frame.close()
        latest_frame.put_beside(b"too late")
    assert (socket.sent, sent) == ([b"piece 1", b"report", b"piece 2"], [1])
