"""The client's end of a WebSocket: requests the upgrade, masks its frames, and records why it closed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.text import clip
from coordinatord.runtime.timers import Timeouts
from coordinatord.runtime.websocket.frames import MASK_BYTES, FrameReader
from coordinatord.runtime.websocket.handshake import (
    END_OF_HEAD,
    HEAD_BYTES_MAX,
    HandshakeError,
    check_answer,
    new_key,
    request_for,
)
from coordinatord.runtime.websocket.web_socket import WebSocket

HTTP = b"HTTP/1."
"""The beginning of an answer."""


class WebSocketClient(WebSocket):
    """The client's end; a subclass acts once it is `opened`, and handles messages."""

    def __init__(self, host: str, path: str, most: int, close_timeouts: Timeouts[WebSocket]) -> None:
        """Request a WebSocket at `host`, with its port, and `path`; messages have at most `most` bytes."""
        super().__init__(FrameReader(masked=False, most=most), close_timeouts)
        self._host, self._path, self._key = host, path, new_key()
        self._head: bytes | None = None
        """The received part of the answer's head; None before the connection, and once the head is complete."""
        self.agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the server has accepted. Raises `OperationalError` or `OSError`."""
        # Without a connection nothing awaits it, and asyncio would log its error as never retrieved.
        self.agreed.add_done_callback(lambda agreed: agreed.cancelled() or agreed.exception())
        self.lost = asyncio.Event()
        """Set once the connection has ended."""
        self.reason = ""
        """Why the connection has ended; empty if the server has closed it in order, and without a reason."""
        self._connected = False
        """Whether there has been a connection, so that `lost` will be set."""
        self.bug: Exception | None = None
        """The exception in the subclass that has ended the connection; None without one."""

    def opened(self) -> None:
        """Act once the server has accepted."""
        raise NotImplementedError

    def headers(self) -> Mapping[str, str]:
        """Return further headers of the request; called when the connection is made. Raises `OperationalError`."""
        return {}

    def new_mask(self) -> bytes:
        """Return four unpredictable bytes, which protect proxies on the way (RFC 6455, 10.3)."""
        return os.urandom(MASK_BYTES)

    def ended(self, error: Exception | None) -> None:
        """Handle the end of the connection."""
        self.reason = str(self._reader.error or error or clip(self.peer_close[2:].decode(errors="replace")))
        if not self.agreed.done():
            self.agreed.set_exception(error or ConnectionResetError("it closed the connection without an answer"))
        self.lost.set()

    async def finish(self) -> None:
        """Close the connection, if any, and wait for its end. A server that has not answered reads no close frame."""
        if not self._connected:
            return
        is_answered = self._head is None  # `connection_made` has set it
        if is_answered:
            self.close()
        else:
            self.abort()
        await self.lost.wait()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        super().connection_made(transport)
        self._connected, self._head = True, b""
        try:
            self._transport.write(request_for(self._host, self._path, self._key, self.headers()))
        except OperationalError as error:
            self.agreed.set_exception(error)
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Read the answer, and then messages."""
        try:
            if self._head is not None:
                data = self._read_answer(self._head + data)
            if data:
                super().data_received(data)
        except HandshakeError as error:
            if not self.agreed.done():
                self.agreed.set_exception(error)
            self.abort()
        except Exception as error:  # noqa: BLE001 - the owner raises it again
            self.bug = error
            self.abort()

    def _read_answer(self, data: bytes) -> bytes:
        """Check the answer once it is complete; return the bytes after it. Raises `HandshakeError`."""
        self._head = data
        found = data.find(END_OF_HEAD, 0, HEAD_BYTES_MAX)
        if found >= 0:
            end = found + len(END_OF_HEAD)
            check_answer(data[:end], self._key)
            self._head = None
            if not self.agreed.done():
                self.agreed.set_result(None)
            self.opened()
            return data[end:]
        if not data.startswith(HTTP[: len(data)]):
            raise HandshakeError("the answer is not HTTP")
        if len(data) >= HEAD_BYTES_MAX:
            raise HandshakeError(f"the answer begins with more than {HEAD_BYTES_MAX} bytes of headers")
        return b""
