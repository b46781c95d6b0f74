"""The WebSocket of a simulated node: that of a nodeclient, but for its mask.

A load of ten thousand clients shares a few cores with the server, so a frame is masked once and may be sent often.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coordinatord.protocol.messages import FRAME_BYTES_MAX, SESSION_PATH
from coordinatord.runtime.timers import Timeouts
from coordinatord.runtime.websocket import frames
from coordinatord.runtime.websocket.web_socket import WebSocket
from coordinatord.runtime.websocket.web_socket_client import WebSocketClient

MASK = b"\x5a\xc3\x17\xe8"
"""Unmasking costs the server the same whatever the mask is."""

CLOSE_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Access:
    """What a client needs where tokens are wanted."""

    tls: ssl.SSLContext
    token: str = field(repr=False)


def framed(message: bytes) -> bytes:
    """Return the frame that carries a message to a server."""
    return frames.framed(frames.BINARY, message, MASK)


class Link(WebSocketClient):
    """One connection for a session; `receive`, which may be replaced, is called with each message."""

    def __init__(self, host: str, receive: Callable[[bytes], None], access: Access | None) -> None:
        """Begin unconnected. An error in `receive` ends the connection."""
        super().__init__(host, SESSION_PATH, FRAME_BYTES_MAX, Timeouts[WebSocket](CLOSE_WITHIN_S, WebSocket.abort))
        self.receive = receive
        self._access = access

    @classmethod
    async def connect(cls, url: str, receive: Callable[[bytes], None], access: Access | None = None) -> Link:
        """Connect to a server at `url`, such as `http://127.0.0.1:8000`. Raises `OSError` or `OperationalError`."""
        place = url.partition("://")[2]
        host, _, port = place.rpartition(":")
        tls = access.tls if access is not None else None
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(place, receive, access), host, int(port), ssl=tls)
        await link.agreed
        return link

    def cut(self) -> None:
        """End the connection as the kernel does when a process is killed: no closing handshake."""
        connection = self._transport.get_extra_info("socket")
        with socket.socket(fileno=socket.dup(connection.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)

    async def end(self) -> str:
        """Wait for the end of the connection; return why it has ended. Raises what `receive` has raised."""
        await self.lost.wait()
        if self.bug is not None:
            raise self.bug
        return self.reason or "the server closed the connection"

    # Callbacks of the WebSocket

    def opened(self) -> None:
        """Do nothing."""

    def headers(self) -> Mapping[str, str]:
        """Return the token, if there is one."""
        return {} if self._access is None else {"Authorization": f"Bearer {self._access.token}"}

    def received(self, kind: int, message: bytes) -> None:
        """Pass a message on."""
        del kind
        self.receive(message)
