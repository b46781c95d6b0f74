"""Sessions and HTTP share one port: whoever asks for a session gets one, however the request arrives."""

import asyncio
from pathlib import Path

import pytest

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import Desired, Goal
from coordinatord.runtime.pinned_tls import pinned_context
from coordinatord.runtime.websocket.frames import BINARY
from coordinatord.runtime.websocket.handshake import HEAD_BYTES_MAX
from coordinatord.server.app import ListenAddress, serve
from coordinatord.server.sessions import connections
from coordinatord.store.memory_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.raw_session import IDLE, get, join, until
from tests.support.raw_websocket import Wire, message, request, wire
from tests.support.secured import secured

JOIN = message(encode(join("a", nodes=2)))

HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

BIG = f"X-Big: {'x' * HEAD_BYTES_MAX}"


async def joined(peer: Wire) -> None:
    """Check that the node is let in."""
    assert (found := await peer.frame()) is not None
    assert (found[0], decode(found[1], Desired).goal) == (BINARY, Goal.WAIT)


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
                await peer.upgraded()
                await joined(peer)


@pytest.mark.parametrize("header", ["Content-Length: 2", "Transfer-Encoding: chunked"])
async def test_a_request_for_a_session_has_no_body(start: Start, header: str) -> None:
    async with start() as server, wire(server.url, request(header) + JOIN) as peer:
        assert b" 400 " in await peer.answer()


async def test_a_request_may_arrive_byte_by_byte_and_the_message_too(start: Start) -> None:
    async with start() as server, wire(server.url) as peer:
        await peer.trickle(request() + JOIN)
        await peer.upgraded()
        await joined(peer)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_proxy_reuses_a_connection_for_a_session(start: Start, at_once: bool) -> None:
    async with start() as server, wire(server.url, HEALTHZ + HEALTHZ) as peer:
        if at_once:
            peer.send(request() + JOIN)
        for _ in range(2):
            assert b" 200 OK" in await peer.answer()
        if not at_once:
            peer.send(request())
        await peer.upgraded()
        if not at_once:
            peer.send(JOIN)
        await joined(peer)
        peer.send(message(encode(IDLE)))
        assert server.driver.machine.sessions == 1
    assert not server.sessions._joined


async def test_the_end_of_a_reused_connection_leaves_nothing(start: Start) -> None:
    async with start() as server:
        tasks = len(asyncio.all_tasks())
        async with wire(server.url, HEALTHZ + request() + JOIN) as peer:
            await peer.answer()
            await peer.upgraded()
            await joined(peer)
        await until(lambda: not server.driver.machine.sessions)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


NO_REQUESTS = (
    (request("Origin: http://evil.example"), 403, b"no web page may send this request"),
    (request(key="short"), 400, b"is not 16 bytes in base64"),
    (request().replace(b"Upgrade: websocket", b"Upgrade: h2c"), 400, b"no `Upgrade: websocket`"),
    (request().replace(b"Connection: Upgrade", b"Connection: close"), 400, b"no `Connection: upgrade`"),
    (request().replace(b"Version: 13", b"Version: 12"), 400, b"version '12'"),
    (request().replace(b"GET", b"POST"), 405, b"takes GET"),
    (request().replace(b"HTTP/1.1", b"HTTP/1.0"), 400, b"HTTP/1.0 has no WebSockets"),
    (request().replace(b"Host: x\r\n", b""), 400, b"Missing 'Host' header"),
    (request(path="/v1/sessions"), 404, b"nothing is served at /v1/sessions"),
    (request(BIG), 400, b"more than 8190 bytes"),
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


async def test_a_head_without_an_end_is_bounded(start: Start) -> None:
    async with start() as server, wire(server.url, request(BIG)[:-4]) as peer:
        assert b" 400 " in await peer.answer()


async def test_half_a_request_for_a_session_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_WITHIN_S", 0.05)
    async with start() as server, wire(server.url, request()[:-2]) as peer:
        await peer.end()
        assert len(server.sessions._joining) == 0


async def test_all_of_it_goes_over_tls_as_well(tmp_path: Path) -> None:
    ours = secured(tmp_path)
    bearer = f"Authorization: Bearer {ours.token().text}"
    trusting = pinned_context(lambda _: None)
    async with (
        serve(ListenAddress("127.0.0.1", 0), Policy(), MemoryStore(), security=ours.security) as server,
        wire(server.url, request(bearer) + JOIN, tls=trusting) as peer,
        wire(server.url, HEALTHZ + request(bearer), tls=trusting) as other,
    ):
        await peer.upgraded()
        await joined(peer)
        assert b" 200 OK" in await other.answer()
        await other.upgraded()
        other.send(message(encode(join("b", nodes=2))))
        assert (found := await other.frame()) is not None
        assert decode(found[1], Desired).goal is Goal.RUN
