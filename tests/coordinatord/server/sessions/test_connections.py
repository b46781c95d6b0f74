"""Whoever asks for a session at the one port gets one, however the request arrives; others are answered over HTTP.

Connections that ask for nothing, or for half of something, are given up.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import Goal
from coordinatord.runtime.websocket.handshake import HEAD_BYTES_MAX
from coordinatord.server.app import ListenAddress, serve
from coordinatord.server.http import request_body
from coordinatord.server.sessions import connections
from coordinatord.server.sessions.connections import HEADERS_MAX, LINE_BYTES_MAX
from coordinatord.store.database_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.raw_session import IDLE, connect, get, join, until
from tests.support.raw_websocket import HALF, WHOLE, message, request, wire
from tests.support.secured import TRUSTING, goal, secured, serving, session


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
        pytest.param(b"\x16\x03\x01\x00\xff\r\n\r\n", b" 400 ", id="no HTTP"),
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


JOIN = message(encode(join("a", nodes=2)))

BIG = f"X-Big: {'x' * HEAD_BYTES_MAX}"


HEADERS = (
    (),
    ("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",),
    ("Sec-WebSocket-Protocol: chat, superchat",),
    ("X-Forwarded-For: 10.0.0.7", "X-Request-ID: 1", "Forwarded: for=10.0.0.7"),
    ("X-Forwarded-For: 10.0.0.7", "X-Forwarded-For: 10.0.0.8"),
    ("Accept-Language: en", "User-Agent: Mozilla/5.0"),
    ("Content-Length: 0",),
    ("Connection: keep-alive",),
)
"""What clients, browsers and proxies send along with a request for a session."""


async def test_a_request_for_a_session_is_answered_with_one(start: Start) -> None:
    async with start() as server:
        for headers in HEADERS:
            async with wire(server.url, request(*headers) + JOIN) as peer:
                assert await goal(peer) is Goal.WAIT


async def test_a_request_may_arrive_byte_by_byte_and_the_message_too(start: Start) -> None:
    async with start() as server, wire(server.url) as peer:
        await peer.trickle(request() + JOIN)
        assert await goal(peer) is Goal.WAIT


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_proxy_reuses_a_connection_for_a_session(start: Start, at_once: bool) -> None:
    async with start() as server, wire(server.url, WHOLE + WHOLE) as peer:
        if at_once:
            peer.send(request() + JOIN)
        for _ in range(2):
            assert b" 200 OK" in await peer.answer()
        if not at_once:
            peer.send(request() + JOIN)
        assert await goal(peer) is Goal.WAIT
        peer.send(message(encode(IDLE)))
        assert server.driver.machine.sessions == 1
    assert not server.sessions._joined


async def test_the_end_of_a_reused_connection_leaves_nothing(start: Start) -> None:
    async with start() as server:
        tasks = len(asyncio.all_tasks())
        async with wire(server.url, WHOLE + request() + JOIN) as peer:
            await peer.answer()
            assert await goal(peer) is Goal.WAIT
        await until(lambda: not server.driver.machine.sessions)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


NO_REQUESTS = (
    (request("Origin: http://evil.example"), 403, b"no web page may send this request"),
    (request("Origin: null"), 403, b"no web page may send this request"),
    (request("Origin: "), 403, b"no web page may send this request"),
    (request(key="short"), 400, b"is not 16 bytes in base64"),
    (request().replace(b"Upgrade: websocket", b"Upgrade: h2c"), 400, b"no `Upgrade: websocket`"),
    (request().replace(b"Connection: Upgrade", b"Connection: close"), 400, b"no `Connection: upgrade`"),
    (request().replace(b"Version: 13", b"Version: 12"), 400, b"version '12'"),
    (request().replace(b"GET", b"POST"), 405, b"takes GET"),
    (request().replace(b"HTTP/1.1", b"HTTP/1.0"), 400, b"HTTP/1.0 has no WebSockets"),
    (request().replace(b"Host: x\r\n", b""), 400, b"Missing 'Host' header"),
    (request(path="/v1/sessions"), 404, b"nothing is served at /v1/sessions"),
    (request(BIG), 400, b"more than 8190 bytes"),
    (request(BIG)[:-4], 400, b""),
    (request("Content-Length: 2") + JOIN, 400, b""),
    (request("Transfer-Encoding: chunked") + JOIN, 400, b""),
    (request("X: a\x01b"), 400, b"Invalid header value"),
    (request(*(f"X-{number}: 1" for number in range(1_000))), 400, b"Too many headers"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, b"Bad Request"),
)
"""Requests that are no good, with the status and the words of the answer."""


async def test_a_request_that_is_no_good_is_refused_over_http(start: Start) -> None:
    async with start() as server:
        for asked, status, words in NO_REQUESTS:
            async with wire(server.url, asked) as peer:
                answer = await peer.answer()
                assert answer.split(b" ", 2)[1] == str(status).encode(), asked[:200]
                assert words in answer
        assert (await get(f"{server.url}/healthz"))[0] == 200


async def test_a_request_for_the_headers_alone_opens_no_session(start: Start) -> None:
    async with start() as server, wire(server.url, request().replace(b"GET", b"HEAD")) as peer:
        assert b" 405 " in await peer.head()


async def test_all_of_it_goes_over_tls_as_well(tmp_path: Path) -> None:
    ours = secured(tmp_path)
    async with (
        serving(ours) as server,
        wire(server.url, session(ours.token(), join("a", nodes=2)), tls=TRUSTING) as peer,
        wire(server.url, WHOLE + session(ours.token(), join("b", nodes=2)), tls=TRUSTING) as other,
    ):
        assert await goal(peer) is Goal.WAIT
        assert b" 200 OK" in await other.answer()
        assert await goal(other) is Goal.RUN


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_without_tls_is_told_that_the_port_has_tls(tmp_path: Path, method: str) -> None:
    async with (
        serving(secured(tmp_path)) as server,
        wire(server.url, f"{method} / HTTP/1.1\r\nHost: a\r\n\r\n".encode()) as peer,
    ):
        answer = await peer.answer()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"https://" in answer
