"""Requests data from nodes through their sessions, such as logs: one request at a time for each session.

A slow reader costs a node nothing, because the reader requests the next piece after it has got the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.log_messages import LogChunk, ReadLog
from coordinatord.protocol.stack_messages import AskStacks, Stacks

ANSWER_WITHIN_S = 10.0
"""How long to wait for one answer: it takes milliseconds, unless the node's disk hangs. Nodes look for a lost
coordinator after five seconds."""

Wanted = TypeVar("Wanted", ReadLog, AskStacks, AskArrivals)
Answer = TypeVar("Answer", LogChunk, Stacks, Arrivals)


class NoAnswerError(OperationalError):
    """The node is no longer connected, or does not answer. State: unchanged, so the request may be retried."""


@dataclass(slots=True)
class _ReadableSession(Generic[Wanted, Answer]):
    """A session that accepts requests of one kind."""

    send: Callable[[Wanted], None]
    """Sends a request, without waiting."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the reader that awaits an answer."""
    request: int = 0
    """The number of the unanswered request; 0 for none."""
    answer: asyncio.Future[Answer] | None = None
    """The answer to it; None without a request."""


class NodeReads(Generic[Wanted, Answer]):
    """Sends requests of one kind, and returns their answers."""

    def __init__(self, likely_cause: str) -> None:
        """Begin without sessions; `likely_cause` is a question at the end of the error about an unanswered request."""
        self._likely_cause = likely_cause
        self._sessions: dict[int, _ReadableSession[Wanted, Answer]] = {}
        self._numbers = count(1)

    def open(self, session: int, send: Callable[[Wanted], None]) -> None:
        """Accept requests to a session; `send` sends one and must not wait."""
        self._sessions[session] = _ReadableSession(send)

    def close(self, session: int) -> None:
        """Remove a session that has ended. A reader that awaits its answer gets `NoAnswerError`."""
        ended = self._sessions.pop(session, None)
        if ended is not None and ended.answer is not None and not ended.answer.done():
            ended.answer.set_exception(NoAnswerError("its node is not connected any more"))

    def deliver(self, session: int, answer: Answer) -> None:
        """Pass a node's answer to the reader that awaits it; drop it if none does."""
        asked = self._sessions.get(session)
        if asked is not None and asked.request == answer.request and asked.answer and not asked.answer.done():
            asked.answer.set_result(answer)

    async def read(self, session: int, wanted: Wanted, within_s: float | None = None) -> Answer:
        """Send a request to a session, and return the answer; wait at most `within_s` seconds.

        Raises `NoAnswerError`.
        """
        within_s = ANSWER_WITHIN_S if within_s is None else within_s
        asked = self._sessions.get(session)
        if asked is None:
            raise NoAnswerError("its node is not connected any more")
        try:
            async with asyncio.timeout(within_s), asked.turn:
                asked.request = next(self._numbers)
                asked.answer = asyncio.get_running_loop().create_future()
                try:
                    if session not in self._sessions:
                        raise NoAnswerError("its node is not connected any more")
                    asked.send(replace(wanted, request=asked.request))
                    return await asked.answer
                finally:
                    asked.request, asked.answer = 0, None
        except TimeoutError as error:
            raise NoAnswerError(f"the node has not answered within {within_s:g} s: {self._likely_cause}") from error


class SessionReads:
    """The requests of all kinds."""

    def __init__(self) -> None:
        self.logs = NodeReads[ReadLog, LogChunk]("does its disk hang?")
        self.stacks = NodeReads[AskStacks, Stacks]("is its host overloaded?")
        self.arrivals = NodeReads[AskArrivals, Arrivals]("is its host overloaded?")

    def open(self, session: int, send: Callable[[ReadLog | AskStacks | AskArrivals], None]) -> None:
        """Accept requests to a session; `send` sends one and must not wait."""
        for reads in (self.logs, self.stacks, self.arrivals):
            reads.open(session, send)

    def close(self, session: int) -> None:
        """End the requests to a session that has ended."""
        for reads in (self.logs, self.stacks, self.arrivals):
            reads.close(session)

    def deliver(self, session: int, answer: LogChunk | Stacks | Arrivals) -> None:
        """Pass a node's answer to the reader that awaits it."""
        by_class: dict[type, NodeReads[Any, Any]] = {LogChunk: self.logs, Stacks: self.stacks, Arrivals: self.arrivals}
        by_class[type(answer)].deliver(session, answer)
