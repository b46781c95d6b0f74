"""One end of an open WebSocket, on a transport of asyncio: messages in and out, and a close that both ends confirm.

It has no task. Messages are levels and not edges, so there is at most one unsent message: a newer one takes its place.
A peer that reads slowly costs one message of memory, and gets the latest message when it does read. Questions, or
answers to questions, may wait beside it: a session has at most one of each kind on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from coordinatord.runtime.timers import Patience
from coordinatord.runtime.websocket.frames import BINARY, CLOSE, PING, PONG, CloseCode, FrameError, FrameReader, framed

UNSENT_BYTES_MAX = 4 * 1024
"""Ten of the usual messages. So much, and one message more, is written ahead for a peer that does not read. Then
nothing is written until it reads. By default asyncio would hold 64 KiB, and a whole session costs 2 KiB."""

BESIDE_MAX = 3
"""The most messages that wait beside the unsent one: the questions for a log, for stacks and for arrivals, or the
answers to these. An older question was given up."""


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
        """Read by `reader`; once closed, have `parting` wait for the peer to close as well."""
        self._transport: asyncio.Transport
        self._reader = reader
        self._parting = parting
        self._unsent: bytes | None = None
        self._beside: list[tuple[bytes, Callable[[], None]]] = []
        self._pong: bytes | None = None
        """The payload of the last ping, to be sent back; earlier pings need no answer (RFC 6455, 5.5.3)."""
        self._paused = False
        """The peer reads too slowly: nothing is written until it has caught up."""
        self._closing = False
        self._dropping = False
        """The connection is about to end. What still arrives is read and dropped, so that the peer comes to read our
        close frame."""
        self._close_frame = b""
        """The close frame that is sent after the unsent message."""

    # For a subclass

    def received(self, kind: int, message: bytes) -> None:
        """Take in one message, which is `TEXT` or `BINARY`."""
        raise NotImplementedError

    def ended(self, error: Exception | None) -> None:
        """Take note that the connection has ended, by itself or by an error."""
        raise NotImplementedError

    def broken(self, error: FrameError) -> None:
        """End the connection, since the peer has broken a rule of WebSockets."""
        self.close(error.code)

    def masked(self) -> bytes:
        """Return the mask of the next frame to send: none, as servers have it."""
        return b""

    # Sending

    def put(self, message: bytes) -> None:
        """Send this next, in place of anything unsent."""
        self.put_frame(self._framed(message))

    def put_frame(self, frame: bytes) -> None:
        """Send a message next that is in its frame already, in place of anything unsent."""
        if self._closing:
            return
        if self._paused:
            self._unsent = frame
        else:
            self._transport.write(frame)

    def put_if_empty(self, message: bytes) -> None:
        """Send this next unless another message is unsent, which has more in it."""
        if self._unsent is None:
            self.put(message)

    def put_beside(self, message: bytes, sent: Callable[[], None] = lambda: None) -> None:
        """Send this as well, after an unsent message, and then call `sent`; the caller waits for that or an answer."""
        if self._closing:
            return
        self._beside = [*self._beside, (message, sent)][-BESIDE_MAX:]
        if not self._paused:
            self._send_unsent()

    def close(self, code: CloseCode = CloseCode.GOING_AWAY, message: bytes | None = None) -> None:
        """End the connection, after a last message if one is given; only the first call counts."""
        if self._closing:
            return
        self._unsent = None if message is None else self._framed(message)
        self._close(code.to_bytes(2))
        self._parting.add(self)

    def abort(self) -> None:
        """End the connection at once: what is unsent is lost."""
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
        """Begin; the handshake is done."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived."""
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
        """Note that the peer sends nothing more; the transport closes when the peer has read all, or in time."""
        if not self._closing:
            self._closing = True
            self._parting.add(self)

    def pause_writing(self) -> None:
        """Write nothing more."""
        self._paused = True

    def resume_writing(self) -> None:
        """Send what has waited."""
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
