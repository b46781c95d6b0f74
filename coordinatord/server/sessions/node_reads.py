"""Requests data from nodes through their sessions: pieces of logs, stacks of workers, or arrivals in collectives.

A session has one request of each kind in progress, so that answers delay its heartbeats little. A slow reader costs a
node nothing, because the reader requests the next piece after it has got the last one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.log_messages import LogChunk, ReadLog
from coordinatord.protocol.stack_messages import AskStacks, Stacks

Wanted = ReadLog | AskStacks | AskArrivals

Answer = TypeVar("Answer", bound=LogChunk | Stacks | Arrivals)


class NoAnswerError(OperationalError):
    """The node is no longer connected, or does not answer. State: unchanged, so the request may be retried."""


@dataclass(slots=True)
class _ReadableSession:
    """A session that accepts requests."""

    send: Callable[[Wanted], None]
    """Sends a request, without waiting."""
    turns: dict[type, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """Locks by the class of the answer; the reader that awaits an answer holds its lock."""
    awaited: dict[tuple[type, int], asyncio.Future[Any]] = field(default_factory=dict)
    """The answers to the requests in progress, by class and number."""


class NodeReads:
    """Sends requests to nodes, and returns their answers."""

    def __init__(self) -> None:
        self._sessions: dict[int, _ReadableSession] = {}
        self._numbers = count(1)

    def open(self, session: int, send: Callable[[Wanted], None]) -> None:
        """Accept requests to a session; `send` sends one and must not wait."""
        self._sessions[session] = _ReadableSession(send)

    def close(self, session: int) -> None:
        """Remove a session that has ended. A reader that awaits its answer gets `NoAnswerError`."""
        ended = self._sessions.pop(session, None)
        for awaited in () if ended is None else ended.awaited.values():
            if not awaited.done():
                awaited.set_exception(NoAnswerError("its node is not connected any more"))

    def deliver(self, session: int, answer: LogChunk | Stacks | Arrivals) -> None:
        """Pass a node's answer to the reader that awaits it; drop it if none does."""
        awaited = self._sessions[session].awaited.get((type(answer), answer.request))
        if awaited is not None and not awaited.done():
            awaited.set_result(answer)

    async def read(self, session: int, wanted: Wanted, kind: type[Answer], within_s: float) -> Answer:
        """Return the answer, of class `kind`, to a request in a session. Raises `NoAnswerError` after `within_s`."""
        likely = "do many ask it?"
        try:
            async with asyncio.timeout(within_s), self._session(session).turns[kind]:
                likely = "does its disk hang?" if kind is LogChunk else "is its host overloaded?"
                number, asked = next(self._numbers), self._session(session)  # again: it may have ended meanwhile
                awaited: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                asked.awaited[kind, number] = awaited
                try:
                    asked.send(replace(wanted, request=number))  # the answer repeats the number
                    return await awaited
                finally:
                    del asked.awaited[kind, number]
        except TimeoutError as error:
            raise NoAnswerError(f"the node has not answered within {within_s:g} s: {likely}") from error

    def _session(self, number: int) -> _ReadableSession:
        """Return a session. Raises `NoAnswerError` if it has ended."""
        if number not in self._sessions:
            raise NoAnswerError("its node is not connected any more")
        return self._sessions[number]
