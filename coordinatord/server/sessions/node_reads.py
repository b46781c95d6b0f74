"""Requests from nodes, through their sessions, what they alone have: one request at a time for each, and its answer.

A reader that is slow, or gone, costs a node nothing: the next piece is requested when the last one was taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

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
    """The node is not connected any more, or does not answer. State: unchanged, so the request may be repeated."""


@dataclass(slots=True)
class _ReadableSession(Generic[Wanted, Answer]):
    """A session that takes requests."""

    send: Callable[[Wanted], None]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    request: int = 0
    """The number of the request that is on its way; 0 if none is."""
    answer: asyncio.Future[Answer] | None = None


class NodeReads(Generic[Wanted, Answer]):
    """Sends the requests of one kind, and hands out the answers."""

    def __init__(self, doubt: str) -> None:
        """Begin without sessions; the error about a node that does not answer ends with the question `doubt`."""
        self._doubt = doubt
        self._sessions: dict[int, _ReadableSession[Wanted, Answer]] = {}
        self._numbers = count(1)

    def open(self, session: int, send: Callable[[Wanted], None]) -> None:
        """Accept requests to a session; `send` sends one and must not wait."""
        self._sessions[session] = _ReadableSession(send)

    def close(self, session: int) -> None:
        """Note that a session has ended. A caller who waits for its answer gets `NoAnswerError`."""
        ended = self._sessions.pop(session, None)
        if ended is not None and ended.answer is not None and not ended.answer.done():
            ended.answer.set_exception(NoAnswerError("its node is not connected any more"))

    def deliver(self, session: int, answer: Answer) -> None:
        """Take an answer that a node has sent. It is dropped if no caller waits for it."""
        reader = self._sessions.get(session)
        if reader is not None and reader.request == answer.request and reader.answer and not reader.answer.done():
            reader.answer.set_result(answer)

    async def read(self, session: int, wanted: Wanted, within_s: float | None = None) -> Answer:
        """Send a request to a session, and return the answer. Raises `NoAnswerError`, also if none comes in time."""
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
            raise NoAnswerError(f"the node has not answered within {within_s:g} s: {self._doubt}") from error


class SessionReads:
    """All that is requested from nodes, through their sessions."""

    def __init__(self) -> None:
        """Begin without sessions."""
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
        """Take an answer that a node has sent."""
        match answer:
            case LogChunk():
                self.logs.deliver(session, answer)
            case Stacks():
                self.stacks.deliver(session, answer)
            case Arrivals():
                self.arrivals.deliver(session, answer)
