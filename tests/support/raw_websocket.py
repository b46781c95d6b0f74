"""A WebSocket client that sends bytes as a test wants them, and takes apart what comes back."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordinatord.protocol.messages import FRAME_BYTES_MAX, SESSION_PATH
from coordinatord.runtime.websocket.frames import BINARY, FrameReader, framed
from tests.support.programs import TIMEOUT_S

HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
"""A request over HTTP, without its end."""

WHOLE = HALF + b"\r\n"

MASK = b"\x5a\xc3\x17\xe8"

KEY = "7pdLRBZXvJPTVbovd9G57Q=="

ACCEPTED = b"Sec-WebSocket-Accept: BKZO/6FTWvi1RSEAF6vyU7JyrHg=\r\n"
"""The header by which a server accepts that key."""

HEAD_OF_ANSWER = b"HTTP/1.1 101 Switching Protocols\r\n"


def request(*more: str, path: str = SESSION_PATH, key: str = KEY) -> bytes:
    """Return a request for a session, with `more` headers."""
    headers = ("Host: x", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    lines = (f"GET {path} HTTP/1.1", *headers, f"Sec-WebSocket-Key: {key}", *more)
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def message(payload: bytes) -> bytes:
    """Return the frame of a client that holds this message."""
    return framed(BINARY, payload, MASK)


class Wire:
    """A connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader(masked=False, most=FRAME_BYTES_MAX)
        self._found: list[tuple[int, bytes]] = []

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    @property
    def unsent(self) -> int:
        """How many bytes the server has not taken, beyond those that the kernel holds."""
        return self._writer.transport.get_write_buffer_size()

    async def trickle(self, data: bytes) -> None:
        """Send bytes one by one, each in a packet of its own."""
        for at in range(len(data)):
            self._writer.write(data[at : at + 1])
            await asyncio.sleep(0)

    def half_close(self) -> None:
        """Send nothing more."""
        self._writer.write_eof()

    async def answer(self) -> bytes:
        """Return the server's next answer over HTTP, with its body."""
        head = await self.head()
        size = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        return head + await asyncio.wait_for(self._reader.readexactly(size), TIMEOUT_S)

    async def upgraded(self) -> None:
        """Check that the next answer makes a WebSocket of the connection."""
        head = await self.head()
        assert head.startswith(HEAD_OF_ANSWER), head
        assert ACCEPTED in head
        assert b"xtensions" not in head

    async def frame(self) -> tuple[int, bytes] | None:
        """Return the next frame, or None at the end of the connection."""
        while not self._found:
            data = await asyncio.wait_for(self._reader.read(1 << 16), TIMEOUT_S)
            if not data:
                return None
            self._found += self._frames.feed(data)
            assert self._frames.error is None
        return self._found.pop(0)

    async def end(self) -> None:
        """Check that the server ends the connection, whatever it sends before."""
        while await self.frame() is not None:
            pass

    async def head(self) -> bytes:
        """Return the head of the server's next answer over HTTP."""
        return await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)


@asynccontextmanager
async def wire(
    url: str,
    data: bytes = b"",
    *,
    tls: ssl.SSLContext | None = None,
    buffer_bytes: int | None = None,
    unsent_bytes: int | None = None,
    source: str | None = None,
) -> AsyncIterator[Wire]:
    """Connect from an address and send these bytes; the kernel may hold so many that are unread, or unsent."""
    host, _, port = url.partition("//")[2].rpartition(":")
    made = socket.socket()
    if buffer_bytes is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    if unsent_bytes is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, unsent_bytes)
    if source is not None:
        made.bind((source, 0))
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, (host, int(port)))
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection(sock=made, ssl=tls, server_hostname=name, limit=1 << 12)
    connected = Wire(reader, writer)
    connected.send(data)
    try:
        yield connected
    finally:
        writer.transport.abort()
