"""One end of an open WebSocket on an asyncio transport: sends and receives messages, and closes in order.

A message of our protocol has the whole state of its sender, so a newer one replaces an unsent one. A slow peer costs
one message of memory, and gets the latest. Requests for data, such as a log, and answers to them do not replace each
other, and are queued separately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from coordinatord.runtime.timers import Timeouts
from coordinatord.runtime.websocket.frames import (
    BINARY,
    CLOSE,
    CONTROL_BYTES_MAX,
    PING,
    PONG,
    CloseCode,
    FrameError,
    FrameReader,
    framed,
)

UNSENT_BYTES_MAX = 4 * 1024
"""How many bytes may wait in the write buffer for a peer that does not read: some ten messages. asyncio's own limit of
64 KiB would be many times the 2 KiB that the rest of a session takes."""

QUEUED_MAX = 3
"""The most queued requests or answers: one each for logs, stacks and arrivals. Older ones have timed out: they are
dropped."""


class WebSocket(asyncio.Protocol):
    """One end of a WebSocket; a subclass handles what arrives."""

    def __init__(self, reader: FrameReader, close_timeouts: Timeouts[WebSocket]) -> None:
        """Decode with `reader`; `close_timeouts` limits the wait for the peer's close frame after ours."""
        self._transport: asyncio.Transport
        self._reader = reader
        self._close_timeouts = close_timeouts
        self._unsent: bytes | None = None
        """The frame of the message to send next; None without one."""
        self._queued: list[tuple[bytes, Callable[[], None]]] = []
        """Requests or answers to send after `_unsent`, each with a function to call then."""
        self._pong: bytes | None = None
        """The payload of the last ping, to send back; earlier pings need no answer (RFC 6455, 5.5.3)."""
        self._paused = False
        """Whether the write buffer is full, so that nothing is written until the peer reads."""
        self._closing = False
        """Whether this end sends no more messages."""
        self._dropping = False
        """Whether incoming data is dropped, while the peer reads our close frame."""
        self._close_frame = b""
        """The close frame to send after the unsent message; empty without one."""
        self.peer_close = b""
        """The payload of the peer's close frame, a code of two bytes and a reason; empty without one."""

    # For a subclass

    def received(self, kind: int, message: bytes) -> None:
        """Handle one message, of kind `TEXT` or `BINARY`."""
        raise NotImplementedError

    def ended(self, error: Exception | None) -> None:
        """Handle the end of the connection, with or without an error."""
        raise NotImplementedError

    def broken(self, error: FrameError) -> None:
        """Close the connection, because the peer has violated the protocol."""
        self.close(error.code)

    def new_mask(self) -> bytes:
        """Return the mask of the next frame to send; empty for a server."""
        return b""

    # Sending

    def put(self, message: bytes) -> None:
        """Send a message; it replaces an unsent one."""
        self.put_frame(self._framed(message))

    def put_frame(self, frame: bytes) -> None:
        """Send the frame of a message; it replaces an unsent one."""
        if self._closing:
            return
        if self._paused:
            self._unsent = frame
        else:
            self._transport.write(frame)

    def put_if_empty(self, message: bytes) -> None:
        """Send a message, unless another one is still unsent, which says more."""
        if self._unsent is None:
            self.put(message)

    def queue(self, message: bytes, sent: Callable[[], None] = lambda: None) -> None:
        """Queue a message, which replaces none, and call `sent` once it is written."""
        if self._closing:
            return
        self._queued = [*self._queued, (message, sent)][-QUEUED_MAX:]
        if not self._paused:
            self._send_unsent()

    def close(self, code: CloseCode = CloseCode.GOING_AWAY, message: bytes | None = None, reason: str = "") -> None:
        """Close the connection, after a last message if one is given; only the first call counts.

        Queued messages are dropped. The peer reads the `reason`, or the part of it that fits into a close frame.
        """
        if self._closing:
            return
        self._unsent = None if message is None else self._framed(message)
        fitting = reason.encode()[: CONTROL_BYTES_MAX - 2].decode(errors="ignore")  # without a character that was cut
        self._close(code.to_bytes(2) + fitting.encode())
        self._close_timeouts.add(self)

    def abort(self) -> None:
        """Drop the connection at once, and all unsent messages."""
        self._transport.abort()

    def _close(self, payload: bytes) -> None:
        self._closing = True
        self._close_frame = framed(CLOSE, payload, self.new_mask())
        if not self._paused:
            self._send_unsent()

    def _send_unsent(self) -> None:
        if self._pong is not None:
            self._transport.write(framed(PONG, self._pong, self.new_mask()))
        if self._unsent is not None:
            self._transport.write(self._unsent)
        if self._close_frame:
            self._transport.write(self._close_frame)
        self._pong = self._unsent = None
        self._close_frame = b""
        if self._queued and not self._closing:
            queued, self._queued = self._queued, []
            for message, sent in queued:
                self._transport.write(self._framed(message))
                sent()

    def _framed(self, message: bytes) -> bytes:
        return framed(BINARY, message, self.new_mask())

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin after the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Decode and handle incoming bytes."""
        if self._dropping:
            return
        reader = self._reader
        for kind, payload in reader.feed(data):
            if kind < CLOSE:  # a message
                if not self._closing:
                    self.received(kind, payload)
            elif kind == CLOSE:
                self.peer_close = payload
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
        """Send no more after the peer's end; the transport closes once all is written, or after a timeout."""
        if not self._closing:
            self._closing = True
            self._close_timeouts.add(self)

    def pause_writing(self) -> None:
        """Stop writing."""
        self._paused = True

    def resume_writing(self) -> None:
        """Send the queued messages."""
        self._paused = False
        self._send_unsent()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._closing = True
        self._close_timeouts.discard(self)
        self.ended(exc)

    def _answer_close(self) -> None:
        self._dropping = True
        if not self._closing:
            self._unsent = None
            self._close(CloseCode.NORMAL.to_bytes(2))  # not the peer's code: some codes must not be sent
            self._close_timeouts.add(self)
        self._transport.close()
