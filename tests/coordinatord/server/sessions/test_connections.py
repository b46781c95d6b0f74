"""Connections that ask for nothing, or for half of something, are given up; there are never too many of them."""

from __future__ import annotations

import asyncio

import pytest

from coordinatord.protocol.messages import Goal
from coordinatord.server.http import request_body
from coordinatord.server.sessions import connections
from tests.coordinatord.server.conftest import Start
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import connect, join

pytestmark = pytest.mark.asyncio

HALF = b"GET /healthz HTTP/1.1\r\nHost: x"


async def opened(url: str, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and send these bytes."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    return reader, writer


@pytest.mark.parametrize("data", [b"", HALF])
async def test_who_does_not_ask_in_time_is_sent_away(
    start: Start, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(connections, "ASK_WITHIN_S", 1.0)  # the node asks in time, on a busy machine too
    async with start() as server, connect(server.url, join("a", nodes=2)) as node:
        await node.receive_goal(Goal.WAIT)
        silent = [await opened(server.url, data) for _ in range(3)]
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
            writer.close()
        await node.beat()
        await node.receive_goal(Goal.WAIT)


async def test_a_request_whose_end_does_not_come_is_given_up_in_words(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "BODY_WITHIN_S", 0.05)
    head = (
        b"POST /v1/nodes/a/drain HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    async with start() as server:
        reader, writer = await opened(server.url, head)
        said = await asyncio.wait_for(reader.readuntil(b"}"), TIMEOUT_S)
        assert b" 408 " in said
        assert b"has not come within" in said
        writer.close()
