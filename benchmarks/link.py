"""A WebSocket client that costs little, so that the server is measured: frames out, frames in, nothing else.

A load of ten thousand clients shares a few cores with the server. With aiohttp's client, a node's part in a join is
0.33 ms of processor time, and with this 0.19 ms. The request to upgrade has the headers that a nodeclient's has. What
is taken apart here is not what the server has for it, so a mistake in that shows.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

BINARY = 0x2
"""The code of the frames that matter; the servers send no pings, and do not fragment."""

FINAL, MASKED = 0x80, 0x80
SHORT_MOST, IN_TWO_BYTES = 125, 126
"""A length is in the second byte, or in the two that follow; no message here is too long for these, see RFC 6455."""

MASK = b"\x5a\xc3\x17\xe8"
"""Clients must mask what they send, against proxies; unmasking costs the server the same whatever the mask is."""

UPGRADE = """\
GET {path} HTTP/1.1\r
Host: {host}:{port}\r
Upgrade: websocket\r
Connection: Upgrade\r
Sec-WebSocket-Version: 13\r
Sec-WebSocket-Key: 7pdLRBZXvJPTVbovd9G57Q==\r
{more}\r
"""

SWITCHED = b"HTTP/1.1 101 "


@dataclass(frozen=True, slots=True)
class Access:
    """What a client needs where tokens are wanted."""

    tls: ssl.SSLContext
    token: str = field(repr=False)


def framed(message: bytes) -> bytes:
    """Return the frame that carries a message to a server."""
    size = len(message)
    if size <= SHORT_MOST:
        head = bytes((FINAL | BINARY, MASKED | size))
    else:
        head = bytes((FINAL | BINARY, MASKED | IN_TWO_BYTES)) + size.to_bytes(2)
    mask = int.from_bytes((MASK * (size // 4 + 1))[:size])
    return head + MASK + (int.from_bytes(message) ^ mask).to_bytes(size)


class Link(asyncio.Protocol):
    """One connection to a WebSocket server."""

    def __init__(self, receive: Callable[[bytes], None]) -> None:
        """Begin unconnected.

        `receive` is called with each message, and an error in it ends the connection and `ended`.
        """
        loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self.receive = receive
        """It may be replaced."""
        self._buffer = b""
        self._opened = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        """Why the connection ended."""

    @classmethod
    async def connect(cls, url: str, path: str, receive: Callable[[bytes], None], access: Access | None = None) -> Link:
        """Connect to a server at `url`, such as `http://127.0.0.1:8000`. Raises `OSError`."""
        host, _, port = url.partition("://")[2].rpartition(":")
        loop = asyncio.get_running_loop()
        tls = access.tls if access is not None else None
        _, link = await loop.create_connection(lambda: cls(receive), host, int(port), ssl=tls)
        more = f"Authorization: Bearer {access.token}\r\n" if access is not None else ""
        request = UPGRADE.format(path=path, host=host, port=port, more=more)
        await link.upgrade(request.encode())
        return link

    async def upgrade(self, request: bytes) -> None:
        """Make a WebSocket of the connection. Raises `ConnectionError`."""
        self._transport.write(request)
        await self._opened

    def send(self, frame: bytes) -> None:
        """Send a frame that `framed` has made."""
        self._transport.write(frame)

    def cut(self) -> None:
        """End the connection as the kernel does when a process is killed: no closing handshake."""
        connection = self._transport.get_extra_info("socket")
        with socket.socket(fileno=socket.dup(connection.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take the frames apart."""
        data = self._buffer + data if self._buffer else data
        at = 0
        if not self._opened.done():
            at = self._open(data)
        try:
            while at >= 0 and len(data) >= at + 2:
                size, start = data[at + 1], at + 2
                if size == IN_TWO_BYTES:
                    size, start = int.from_bytes(data[start : start + 2]), start + 2
                end = start + size
                if len(data) < end:
                    break
                if data[at] == FINAL | BINARY:
                    self.receive(data[start:end])
                at = end
        except Exception as error:  # noqa: BLE001 - it is raised again where the link is waited for
            self._fail(error)
        self._buffer = data[max(at, 0) :]

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if not self._opened.done():
            self._opened.set_exception(ConnectionError(f"closed before the upgrade: {exc or 'no reason given'}"))
        if not self.ended.done():
            self.ended.set_result(str(exc or "the server closed the connection"))

    def _open(self, data: bytes) -> int:
        """Return where the answer to the upgrade ends, or -1 if it has not ended."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return -1
        if data.startswith(SWITCHED):
            self._opened.set_result(None)
        else:
            self._opened.set_exception(ConnectionError(data[:end].partition(b"\r\n")[0].decode(errors="replace")))
            self._transport.abort()
        return end + 4

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
        self._transport.abort()
