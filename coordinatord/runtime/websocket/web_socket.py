"""One end of an open WebSocket on an asyncio transport: sends and receives messages, and closes in order.

It has no task. Messages are levels and not edges, so there is at most one unsent message, and a newer one replaces it.
A slow peer costs one message of memory, and gets the latest message. Questions, or answers to questions, are queued
beside it: a session has at most one of each kind in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from coordinatord.runtime.timers import Patience
from coordinatord.runtime.websocket.frames import BINARY, CLOSE, PING, PONG, CloseCode, FrameError, FrameReader, framed

UNSENT_BYTES_MAX = 4 * 1024
"""The write buffer for a peer that does not read, some ten messages. By default asyncio would buffer 64 KiB, and a
whole session costs 2 KiB."""

BESIDE_MAX = 3
"""The most messages that are queued beside the unsent one: the questions for a log, for stacks and for arrivals, or the
answers to these. An older question has timed out."""


class WebSocket(asyncio.Protocol):
    """One end of a WebSocket; a subclass handles what arrives."""

    __slots__ = (
        "_beside",
        "_close_frame",
        "_closing",
        "_dropping",
        "_parting",
        "_paused",
        "_pong",
        "_reader",
        "_transport",
        "_unsent",
    )

    def __init__(self, reader: FrameReader, parting: Patience[WebSocket]) -> None:
        """Decode with `reader`; once this end has closed, `parting` limits the wait for the peer's close."""
        self._transport: asyncio.Transport
        self._reader = reader
        self._parting = parting
        self._unsent: bytes | None = None
        self._beside: list[tuple[bytes, Callable[[], None]]] = []
        self._pong: bytes | None = None
        """The payload of the last ping, to send back; earlier pings need no answer (RFC 6455, 5.5.3)."""
        self._paused = False
        """The write buffer is full: nothing is written until the peer has read."""
        self._closing = False
        self._dropping = False
        """The connection is closing. Incoming data is dropped, so that the peer gets to read our close frame."""
        self._close_frame = b""
        """The close frame, to send after the unsent message."""

    # For a subclass

    def received(self, kind: int, message: bytes) -> None:
        """Handle one message, of kind `TEXT` or `BINARY`."""
        raise NotImplementedError

    def ended(self, error: Exception | None) -> None:
        """Handle the end of the connection, with or without an error."""
        raise NotImplementedError

    def broken(self, error: FrameError) -> None:
        """End the connection, because the peer has violated the protocol."""
        self.close(error.code)

    def masked(self) -> bytes:
        """Return the mask of the next frame to send: none, for a server."""
        return b""

    # Sending

    def put(self, message: bytes) -> None:
        """Send a message next; it replaces an unsent one."""
        self.put_frame(self._framed(message))

    def put_frame(self, frame: bytes) -> None:
        """Send a message that is framed already; it replaces an unsent one."""
        if self._closing:
            return
        if self._paused:
            self._unsent = frame
        else:
            self._transport.write(frame)

    def put_if_empty(self, message: bytes) -> None:
        """Send a message unless there is an unsent one, which has more content."""
        if self._unsent is None:
            self.put(message)

    def put_beside(self, message: bytes, sent: Callable[[], None] = lambda: None) -> None:
        """Queue a message after the unsent one, and call `sent` once it is written."""
        if self._closing:
            return
        self._beside = [*self._beside, (message, sent)][-BESIDE_MAX:]
        if not self._paused:
            self._send_unsent()

    def close(self, code: CloseCode = CloseCode.GOING_AWAY, message: bytes | None = None) -> None:
        """Close the connection, after a last message if one is given; only the first call counts."""
        if self._closing:
            return
        self._unsent = None if message is None else self._framed(message)
        self._close(code.to_bytes(2))
        self._parting.add(self)

    def abort(self) -> None:
        """Drop the connection at once, and all unsent messages."""
        self._transport.abort()

    def _close(self, payload: bytes) -> None:
        self._closing = True
        self._close_frame = framed(CLOSE, payload, self.masked())
        if not self._paused:
            self._send_unsent()

    def _send_unsent(self) -> None:
        if self._pong is not None:
            self._transport.write(framed(PONG, self._pong, self.masked()))
        if self._unsent is not None:
            self._transport.write(self._unsent)
        if self._close_frame:
            self._transport.write(self._close_frame)
        self._pong = self._unsent = None
        self._close_frame = b""
        if self._beside and not self._closing:
            beside, self._beside = self._beside, []
            for message, sent in beside:
                self._transport.write(self._framed(message))
                sent()

    def _framed(self, message: bytes) -> bytes:
        return framed(BINARY, message, self.masked())

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start after the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Decode and handle incoming bytes."""
        if self._dropping:
            return
        reader = self._reader
        for kind, payload in reader.feed(data):
            if kind < CLOSE:
                if not self._closing:
                    self.received(kind, payload)
            elif kind == CLOSE:
                self._answer_close()
                return
            elif kind == PING:
                self._pong = payload
                if not self._paused and not self._closing:
                    self._send_unsent()
        if reader.error is not None:
            self._dropping = True
            self.broken(reader.error)

    def eof_received(self) -> None:
        """Handle the peer's end of data; the transport closes once the peer has read all, or times out."""
        if not self._closing:
            self._closing = True
            self._parting.add(self)

    def pause_writing(self) -> None:
        """Stop writing."""
        self._paused = True

    def resume_writing(self) -> None:
        """Send the queued messages."""
        self._paused = False
        self._send_unsent()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._closing = True
        self._parting.discard(self)
        self.ended(exc)

    def _answer_close(self) -> None:
        self._dropping = True
        if not self._closing:
            self._unsent = None
            self._close(CloseCode.NORMAL.to_bytes(2))  # the peer's own code may be none that anybody may send
            self._parting.add(self)
        self._transport.close()
