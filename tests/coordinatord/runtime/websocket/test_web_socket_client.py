"""A client's end of a WebSocket says why there is none, and ends by a bug as by anything else."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from coordinatord.runtime.timers import Timeouts
from coordinatord.runtime.websocket.frames import BINARY, CLOSE, PING, PONG, FrameReader, framed
from coordinatord.runtime.websocket.handshake import END_OF_HEAD, HandshakeError, answer_to, headers_of
from coordinatord.runtime.websocket.web_socket import WebSocket
from coordinatord.runtime.websocket.web_socket_client import WebSocketClient
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import until


class Client(WebSocketClient):
    """Keeps what arrives."""

    def __init__(self) -> None:
        super().__init__("localhost", "/there", 1_000, Timeouts[WebSocket](0.05, WebSocket.abort))
        self.heard: list[bytes] = []

    def opened(self) -> None:
        """Say hello."""
        self.put(b"hello")

    def received(self, kind: int, message: bytes) -> None:
        """Keep it; stumble over a text."""
        assert kind == BINARY
        self.heard.append(message)


def right(request: bytes) -> bytes:
    """Answer a request as a server does."""
    headers = headers_of(request.partition(b"\r\n")[2])
    assert headers is not None
    assert headers["host"] == "localhost"
    return answer_to(headers)


@asynccontextmanager
async def connected(
    answer: Callable[[bytes], bytes],
) -> AsyncIterator[tuple[Client, asyncio.StreamWriter, FrameReader]]:
    """Connect a client to a server that answers like this; yield both, and what reads at the server."""
    reader = FrameReader(masked=True, most=1_000)
    made: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def serve(found: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await found.readuntil(END_OF_HEAD)))
        made.set_result(writer)
        while data := await found.read(1 << 16):
            for kind, payload in reader.feed(data):
                if kind in {BINARY, PONG}:
                    writer.write(framed(BINARY, b"%d " % kind + payload))
                else:
                    writer.write(framed(kind, payload))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Client()
    async with server, asyncio.timeout(TIMEOUT_S):
        await asyncio.get_running_loop().create_connection(lambda: client, *server.sockets[0].getsockname())
        yield client, await made, reader
        await client.finish()


async def test_messages_go_both_ways_and_pings_are_answered() -> None:
    async with connected(right) as (client, server, reader):
        await client.agreed
        server.write(framed(PONG, b"unasked") + framed(PING, b"?") + framed(PING, b""))
        await until(lambda: len(client.heard) == 3)
        assert client.heard == [b"2 hello", b"10 ?", b"10 "]
        assert reader.error is None, "all was masked"
        await client.finish()
        assert client.reason == ""


@pytest.mark.parametrize("more", [b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n", b"X-Via: a\r\n b\r\n", b"X-Via : a\r\n"])
async def test_whatever_a_proxy_adds_to_the_answer_is_let_through(more: bytes) -> None:
    async with connected(lambda request: right(request).replace(b"Upgrade:", more + b"Upgrade:", 1)) as (client, _, _):
        await client.agreed


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", None, "is not HTTP"),
        (b"HTTP/1.1 404 Not Found\r\nServer: x\r\n\r\n", 404, "has the status 404"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n", 101, "another request"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", 101, "another request"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000, None, "more than 8192 bytes of headers"),
        (b"HTTP/2 200\r\n\r\n", None, "is not HTTP"),
    ],
)
async def test_another_answer_is_explained(answer: bytes, status: int | None, words: str) -> None:
    async with connected(lambda _: answer) as (client, _, _):
        with pytest.raises(HandshakeError, match=words) as refused:
            await client.agreed
        assert refused.value.status == status


async def test_a_server_that_hangs_up_without_an_answer_is_told_as_an_error_of_the_system() -> None:
    async with connected(lambda _: b"HTTP/1.1 ") as (client, server, _):
        server.close()
        with pytest.raises(ConnectionError):
            await client.agreed


async def test_an_answer_that_nobody_waits_for_any_more_leaves_no_complaint() -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    client = Client()
    client.ended(None)
    assert client.agreed.done()
    del client
    gc.collect()
    assert complaints == []


async def test_a_bug_ends_the_connection_and_can_be_raised_again() -> None:
    async with connected(right) as (client, server, _):
        await client.agreed
        server.write(framed(0x1, b"text"))
        await client.lost.wait()
        assert isinstance(client.bug, AssertionError)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (framed(BINARY, bytes(1_001)), "a message has 1001 bytes or more, and 1000 are the most"),
        (framed(CLOSE, b"\x03\xe9"), ""),
    ],
)
async def test_a_rule_that_a_server_breaks_is_the_reason_and_its_close_is_no_error(sent: bytes, reason: str) -> None:
    async with connected(right) as (client, server, _):
        await client.agreed
        server.write(sent)
        await client.lost.wait()
        assert (client.reason, client.bug) == (reason, None)


async def test_what_goes_beside_waits_its_turn_and_is_reported_once_sent() -> None:
    sent: list[int] = []
    async with connected(right) as (client, _, _):
        await client.agreed
        client.pause_writing()
        client.put(b"report")
        client.queue(b"piece", lambda: sent.append(1))
        assert sent == []
        client.resume_writing()
        assert sent == [1]
        client.queue(b"piece 2", lambda: sent.append(2))
        await until(lambda: len(client.heard) == 4)
        assert client.heard == [b"2 hello", b"2 report", b"2 piece", b"2 piece 2"]
        client.close()
        client.queue(b"too late", lambda: sent.append(3))
        assert sent == [1, 2]
