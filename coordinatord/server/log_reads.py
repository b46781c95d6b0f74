"""Reads nodes' log files through their sessions: one request at a time for each node, and one chunk in answer to it.

So a reader that is slow, or gone, costs a node nothing: the next chunk is asked for when the last one was taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.log_messages import LogChunk, ReadLog

ANSWER_WITHIN_S = 10.0
"""The limit of one answer: it takes milliseconds, unless the node's disk hangs. Nodes look for a lost coordinator after
five seconds."""


class NoChunkError(OperationalError):
    """The node cannot be asked any more, or does not answer. Nothing has changed; it can be asked again."""


@dataclass(slots=True)
class _Session:
    """A session that can be asked."""

    send: Callable[[ReadLog], None]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    request: int = 0
    """The request that is on its way; 0 if none is."""
    answer: asyncio.Future[LogChunk] | None = None


class LogReads:
    """All requests for logs that are on their way."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}
        self._numbers = count(1)

    def open(self, session: int, send: Callable[[ReadLog], None]) -> None:
        """Let a session be asked; `send` gives a request to it and must not wait."""
        self._sessions[session] = _Session(send)

    def close(self, session: int) -> None:
        """Note that a session has ended: who waits for it is answered."""
        ended = self._sessions.pop(session, None)
        if ended is not None and ended.answer is not None and not ended.answer.done():
            ended.answer.set_exception(NoChunkError("its node is not connected any more"))

    def deliver(self, session: int, chunk: LogChunk) -> None:
        """Take a chunk that a node has sent; one that nobody waits for is dropped."""
        asked = self._sessions.get(session)
        if asked is not None and asked.request == chunk.request and asked.answer and not asked.answer.done():
            asked.answer.set_result(chunk)

    async def read(self, session: int, wanted: ReadLog) -> LogChunk:
        """Ask a session for a chunk, and return it. Raises `NoChunkError`."""
        asked = self._sessions.get(session)
        if asked is None:
            raise NoChunkError("its node is not connected any more")
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S), asked.turn:
                asked.request = next(self._numbers)
                asked.answer = asyncio.get_running_loop().create_future()
                try:
                    if session not in self._sessions:
                        raise NoChunkError("its node is not connected any more")
                    asked.send(replace(wanted, request=asked.request))
                    return await asked.answer
                finally:
                    asked.request, asked.answer = 0, None
        except TimeoutError as error:
            raise NoChunkError(
                f"the node has not answered within {ANSWER_WITHIN_S:g} s: does its disk hang?"
            ) from error
