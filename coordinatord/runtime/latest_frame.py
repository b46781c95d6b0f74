"""The sending end of a session, for both programs.

Messages are levels and not edges, so there is at most one unsent message: a newer one takes its place. A peer that
reads slowly costs one message of memory, and gets the latest message when it does read. Beside these go the messages
that read logs. Each is sent, after a message that is waiting; the two sides have one of them on its way at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

GOING_AWAY = 1001
"""The close code of an end that goes away (RFC 6455, 7.4.1)."""


class FrameSink(Protocol):
    """What a server's and a client's WebSocket of aiohttp have in common."""

    async def send_bytes(self, data: bytes) -> None:
        """Send one binary frame, waiting while the peer reads too slowly. Raises `ConnectionError`."""

    async def close(self, *, code: int) -> bool:
        """Close with a close frame."""


class LatestFrame:
    """The unsent message of one end of a session."""

    def __init__(self) -> None:
        self._frame: bytes | None = None
        self._beside: deque[tuple[bytes, Callable[[], None]]] = deque()
        self._closing = False
        self._attended = False
        """The caller that puts a message in also sends it, so no task has to be woken for it."""
        self._filled = asyncio.Event()

    def put(self, frame: bytes) -> None:
        """Send this next, in place of anything unsent."""
        if not self._closing:
            self._frame = frame
            if not self._attended:
                self._filled.set()

    async def answer(self, decide: Callable[[], None], socket: FrameSink, transport: asyncio.WriteTransport) -> None:
        """Send what `decide` puts in, in the task that received the peer's message. Raises `ConnectionError`.

        So no other task has to be woken for each answer to a heartbeat. This never waits: if the peer reads slowly the
        other task sends it, and this one goes on receiving.
        """
        self._attended = True
        try:
            decide()
        finally:
            self._attended = False
        if self._frame is None or self._closing:
            return
        if transport.get_write_buffer_size():
            self._filled.set()
            return
        frame, self._frame = self._frame, None
        await socket.send_bytes(frame)

    def put_if_empty(self, frame: bytes) -> None:
        """Send this next unless another message is unsent, which has more in it."""
        if self._frame is None:
            self.put(frame)

    def put_beside(self, frame: bytes, sent: Callable[[], None] = lambda: None) -> None:
        """Send this as well, in its turn, and then call `sent`; the caller bounds how many there are."""
        if not self._closing:
            self._beside.append((frame, sent))
            self._filled.set()

    def close(self, frame: bytes | None = None) -> None:
        """End the session, after a last message if one is given; only the first call counts."""
        if self._closing:
            return
        self._frame = frame
        self._closing = True
        self._filled.set()

    async def empty_into(self, socket: FrameSink) -> None:
        """Send messages as they come, until the session is to end; then close the socket. Raises `ConnectionError`."""
        closing = False
        while not closing:
            await self._filled.wait()
            self._filled.clear()
            # It is read before the sending, so that a last message that comes meanwhile is still sent.
            closing = self._closing
            frame, self._frame = self._frame, None
            if frame is not None:
                await socket.send_bytes(frame)
            if self._beside and not closing:
                frame, sent = self._beside.popleft()
                await socket.send_bytes(frame)
                sent()
                if self._beside:
                    self._filled.set()
        await socket.close(code=GOING_AWAY)
