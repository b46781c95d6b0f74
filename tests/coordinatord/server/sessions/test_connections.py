"""Connections that ask for nothing, or for half of something, are given up; there are never too many of them."""

import logging
import socket
from collections.abc import Callable

import pytest

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.messages import Goal
from coordinatord.server.app import ListenAddress, serve
from coordinatord.server.http import request_body
from coordinatord.server.sessions import connections
from coordinatord.server.sessions.connections import HEADERS_MAX, LINE_BYTES_MAX
from coordinatord.store.database_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.raw_session import connect, join
from tests.support.raw_websocket import HALF, WHOLE, request, wire


@pytest.mark.parametrize("data", [b"", HALF, request()[:-2]], ids=["nothing", "over HTTP", "for a session"])
async def test_who_does_not_ask_in_time_is_sent_away(
    start: Start, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_WITHIN_S", 1.0)  # the node asks in time, on a busy machine too
    async with start() as server, connect(server.url, join("a", nodes=2)) as node:
        await node.receive_goal(Goal.WAIT)
        async with wire(server.url, data) as silent:
            await silent.end()
        await node.beat()
        await node.receive_goal(Goal.WAIT)


async def test_a_request_whose_end_does_not_come_is_given_up_in_words(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "BODY_WITHIN_S", 0.05)
    head = b"POST /v1/nodes/a/drain HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    async with start() as server, wire(server.url, head) as peer:
        said = await peer.answer()
        assert b" 408 " in said
        assert b"has not come within" in said


@pytest.mark.parametrize(
    ("headers", "most"),
    [
        pytest.param(lambda size: b"X-Long: " + b"x" * size + b"\r\n", LINE_BYTES_MAX, id="long"),
        pytest.param(lambda number: b"X: 1\r\n" * (number - 1), HEADERS_MAX, id="many, with that of the host"),
    ],
)
async def test_headers_over_a_limit_are_refused(start: Start, headers: Callable[[int], bytes], most: int) -> None:
    async with start() as server:
        for number, said in ((most, b" 200 OK"), (most + 1, b" 400 ")):
            async with wire(server.url, HALF + headers(number) + b"\r\n") as peer:
                assert said in await peer.answer()


GZIPPED = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone"
MSGPACK = b"Accept: application/msgpack\r\n"
BROWSER = b"GET %s HTTP/1.1\r\nHost: evil.\xff\r\nConnection: close\r\nAccept-Language: en\r\n" + MSGPACK + b"\r\n"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        pytest.param(GZIPPED % (b"/v1/page/session", b"application/json"), b" 400 ", id="a body that is not gzipped"),
        pytest.param(GZIPPED % (b"/v1/page/session", b"text/plain"), b" 415 ", id="the same, unread"),
        pytest.param(WHOLE.replace(b"Host", b"Expect: \xff\r\nHost"), b" 500 ", id="an expectation"),
        pytest.param(BROWSER % b"/healthz", b" 403 ", id="a name that is no text"),
        pytest.param(BROWSER % b"/v1/jobs/%ff", b" 403 ", id="a path that is no text"),
    ],
)
async def test_a_request_that_is_broken_leaves_no_traceback_in_the_log(
    start: Start, caplog: pytest.LogCaptureFixture, asked: bytes, said: bytes
) -> None:
    async with start() as server, wire(server.url, asked) as peer:
        assert said in await peer.answer()
        await peer.end()
        assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_what_follows_a_request_for_a_stream_is_not_read_without_end() -> None:
    """Else the requests of somebody who reads no answer would take any amount of memory."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        ahead = WHOLE.replace(b"/healthz", b"/v1/stream") + WHOLE * 50_000
        async with (
            serve(ListenAddress("127.0.0.1", 0, [listener]), Policy(), MemoryStore()) as server,
            wire(server.url, ahead, unsent_bytes=1 << 16) as peer,
            connect(server.url, join("a", nodes=2)) as node,
        ):
            await node.receive_goal(Goal.WAIT)
            for _ in range(100):
                await node.beat()
                await node.receive_goal(Goal.WAIT)
            assert peer.unsent > len(ahead) // 2
