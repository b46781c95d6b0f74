"""Coordinators that refuse, break off or talk nonsense: the node says so in one line, and gives up in time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgpack
import pytest
from aiohttp import web

from coordinatord.wire.codec import encode
from coordinatord.wire.messages import SESSION_PATH, Desired, Goal, RefusalCode, Refused
from tests.support.programs import BIN, Program

Behaviour = Callable[[web.WebSocketResponse], Awaitable[object]]

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

WAIT = Desired(
    run="run",
    round=0,
    goal=Goal.WAIT,
    reason="strange",
    wait_s=None,
    heartbeat_s=1.0,
    lease_s=5.0,
    planned=False,
    assignment=None,
    outcome=None,
)


@asynccontextmanager
async def coordinator(behave: Behaviour) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve what behaves like this after each join; yield where, and the joins so far."""
    joins: list[bytes] = []

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(timeout=0.1)
        await socket.prepare(request)
        joins.append(await socket.receive_bytes())
        await behave(socket)
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get(SESSION_PATH, serve)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"127.0.0.1:{runner.addresses[0][1]}", joins
    finally:
        await runner.cleanup()


async def join(behave: Behaviour, *flags: str) -> tuple[int, Program, int]:
    """Let a node join; return its exit code, the node, and how often it tried."""
    async with coordinator(behave) as (endpoint, joins):
        node = Program(BIN / "nodeclient", "join", "--coord", endpoint, *flags, "--", "true")
        try:
            code = await asyncio.to_thread(node.wait)
        finally:
            node.close()
    assert "Traceback" not in node.output
    return code, node, len(joins)


async def test_another_version_is_a_refusal() -> None:
    words = "this side speaks version 9 of the protocol, the other 1: install the same release on all hosts"
    refused = Refused(RefusalCode.VERSION, words, retry=False)
    code, node, tries = await join(lambda socket: socket.send_bytes(encode(refused)))
    assert (code, tries) == (77, 1)
    assert f"refused by the coordinator: {words}" in node.lines[-1]


async def test_a_refusal_that_may_pass_is_tried_again_with_pauses_until_the_join_timeout() -> None:
    refused = Refused(RefusalCode.LIMIT, "this coordinator already has 1 nodes, its limit", retry=True)
    code, node, tries = await join(lambda socket: socket.send_bytes(encode(refused)), "--join-timeout", "1.5")
    assert code == 69
    assert "this coordinator already has 1 nodes, its limit" in node.lines[-1]
    assert 2 <= tries <= 12


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (lambda socket: socket.close(), "closed the connection"),
        (lambda socket: socket.send_str("hello"), "sent a text frame"),
        (lambda socket: socket.send_bytes(b"\xc1"), "sent what is no message: the frame is not msgpack"),
        (lambda socket: socket.send_bytes(b"x" * 20_000), "closed|too|big|frame|message"),
        (lambda socket: socket.send_bytes(msgpack.packb({"type": "desired"})), "sent what is no message"),
        (
            lambda socket: socket.send_bytes(encode(WAIT).replace(b"\xa4wait", b"\xa3run")),
            "sent what is no message",
        ),
        (
            lambda socket: socket.send_bytes(encode(WAIT).replace(b"\xa4wait", b"\xa4exit")),
            "sent what is no message",
        ),
    ],
    ids=["close", "text", "garbage", "too long", "empty", "run without assignment", "exit without outcome"],
)
async def test_nonsense_is_said_and_the_node_gives_up_in_time(behave: Behaviour, words: str) -> None:
    code, node, tries = await join(behave, "--join-timeout", "0.5")
    assert code == 69
    assert any(word in node.lines[-1] for word in words.split("|"))
    assert 1 <= tries <= 8


async def test_a_coordinator_that_grants_no_time_at_all_does_not_make_the_node_spin() -> None:
    heard = 0

    async def count(socket: web.WebSocketResponse) -> None:
        nonlocal heard
        hasty = dataclasses.replace(WAIT, heartbeat_s=0.0, lease_s=0.0)
        await socket.send_bytes(encode(hasty))
        async for _ in socket:
            heard += 1
            if heard > 1000:
                return

    _, _, tries = await join(count, "--join-timeout", "0.5")
    assert heard <= 1000
    assert tries < 100
