"""Coordinators that refuse, break off or send nonsense: the node logs it in one line, and gives up in time."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgpack
import pytest
from aiohttp import web
from msgspec import structs

from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import Goal, Message, Outcome, RefusalCode, Refused, Result
from coordinatord.protocol.versions import SUPPORTED
from tests.support.programs import BIN, Program
from tests.support.strange_coordinator import WAIT, Behaviour, strange_coordinator

pytestmark = pytest.mark.slow

FULL = Refused(RefusalCode.LIMIT, "this coordinator already has 1 nodes, its limit", retry=True)

DONE = structs.replace(WAIT, goal=Goal.EXIT, outcome=Outcome(Result.SUCCEEDED, 0, "all workers succeeded"))


@asynccontextmanager
async def joining(behave: Behaviour) -> AsyncIterator[tuple[Program, list[bytes]]]:
    """Start a node that joins such a coordinator; yield the node, and its joins so far."""
    async with strange_coordinator(behave) as (endpoint, joins):
        node = Program(BIN / "nodeclient", "join", "--coord", endpoint, "--", "true")
        try:
            yield node, joins
        finally:
            await asyncio.to_thread(node.close)
    assert "Traceback" not in node.output


async def end_of(node: Program) -> int:
    """Wait for the exit code of a node."""
    return await asyncio.to_thread(node.wait)


OTHER_VERSION = Refused(
    RefusalCode.VERSION,
    "the coordinator supports protocol 9, 8, this node 5: install the same release on all hosts",
    retry=False,
)


async def test_another_version_is_a_refusal_once_each_of_the_node_was_tried() -> None:
    async with joining(lambda socket: socket.send_bytes(encode(OTHER_VERSION))) as (node, joins):
        assert await end_of(node) == 77
        assert [msgpack.unpackb(join)["version"] for join in joins] == list(SUPPORTED)
        assert f"refused by the coordinator: {OTHER_VERSION.message}" in node.lines[-1]


async def test_a_refusal_that_may_pass_is_tried_again_until_the_node_is_let_in() -> None:
    answers: list[Message] = [FULL, FULL, FULL, DONE]

    async def answer(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(encode(answers.pop(0)))

    async with joining(answer) as (node, joins):
        assert await end_of(node) == 0
        assert len(joins) == 4
        assert node.output.count(FULL.message) == 1
        assert node.output.count("connected to the coordinator") == 1


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (lambda socket: socket.close(), "closed the connection"),
        (lambda socket: socket.send_str("hello"), "sent a text frame"),
        (lambda socket: socket.send_bytes(b"\xc1"), "sent a malformed message: the frame is not msgpack"),
        (lambda socket: socket.send_bytes(encode(WAIT).replace(b"strange", b"str\x1b[2J")), "printable"),
    ],
    ids=["close", "text", "garbage", "escape"],
)
async def test_nonsense_is_said_once_and_the_node_goes_on_looking(behave: Behaviour, words: str) -> None:
    async with joining(behave) as (node, joins):
        await asyncio.to_thread(node.await_line, f"looking for the coordinator: .*({words})")
        while len(joins) < 3:  # noqa: ASYNC110 - the list announces nothing
            await asyncio.sleep(0.01)
        node.signal(signal.SIGTERM)
        assert await end_of(node) == 143
        assert node.output.count("looking for the coordinator") == 1
        assert "connected to the coordinator" not in node.output


@pytest.mark.parametrize("lease_s", [0.0, 5.0])
async def test_a_coordinator_that_grants_no_time_at_all_does_not_make_the_node_spin(lease_s: float) -> None:
    heard: list[int] = []

    async def count(socket: web.WebSocketResponse) -> None:
        hasty = structs.replace(WAIT, heartbeat_s=0.0, lease_s=lease_s)
        await socket.send_bytes(encode(hasty))
        heard.append(0)
        async for _ in socket:
            heard[-1] += 1

    async with joining(count) as (node, joins):
        while len(joins) < 10:  # noqa: ASYNC110 - the list announces nothing
            await asyncio.sleep(0.01)
        node.signal(signal.SIGTERM)
        await end_of(node)
    assert sum(heard) < 100 * len(joins)
