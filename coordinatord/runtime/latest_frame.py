"""The sending end of a session, for both programs.

What either side has to say is a level and not an edge, so there is at most one unsent message: a newer one takes its
place. A peer that reads slowly costs one message of memory, and gets the latest word when it does read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

GOING_AWAY = 1001
"""The close code of an end that goes away (RFC 6455, 7.4.1)."""


class WebSocket(Protocol):
    """What a server's and a client's WebSocket of aiohttp have in common."""

    async def send_bytes(self, data: bytes) -> None:
        """Send one binary frame, waiting while the peer reads too slowly. Raises `ConnectionError`."""

    async def close(self, *, code: int) -> bool:
        """Close in good order."""


class LatestFrame:
    """What one end of a session is still to send."""

    def __init__(self) -> None:
        self._frame: bytes | None = None
        self._closing = False
        self._attended = False
        """Who puts something in also sends it, so nobody has to be woken for it."""
        self._filled = asyncio.Event()

    def put(self, frame: bytes) -> None:
        """Let this be sent next, in place of anything unsent."""
        if not self._closing:
            self._frame = frame
            if not self._attended:
                self._filled.set()

    async def answer(self, decide: Callable[[], None], socket: WebSocket, transport: asyncio.WriteTransport) -> None:
        """Send what `decide` puts in, in the task that heard the peer. Raises `ConnectionError`.

        So no other task has to be woken for each answer to a heartbeat. This never waits: where the peer reads slowly
        the other task sends it, and this one goes on listening.
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
        """Let this be sent next unless there is something that says more."""
        if self._frame is None:
            self.put(frame)

    def close(self, frame: bytes | None = None) -> None:
        """End the session, after a last word if one is given; only the first call counts."""
        if self._closing:
            return
        self._frame = frame
        self._closing = True
        self._filled.set()

    async def empty_into(self, socket: WebSocket) -> None:
        """Send what comes, until the session is to end; then close the socket. Raises `ConnectionError`."""
        closing = False
        while not closing:
            await self._filled.wait()
            self._filled.clear()
            # Looked at before the sending, so that a last word that comes meanwhile is still sent.
            closing = self._closing
            frame, self._frame = self._frame, None
            if frame is not None:
                await socket.send_bytes(frame)
        await socket.close(code=GOING_AWAY)
