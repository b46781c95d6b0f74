"""Asks nodes through their sessions for what they alone have: one request at a time for each, and one answer to it.

So a reader that is slow, or gone, costs a node nothing: the next piece is asked for when the last one was taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Generic, TypeVar

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
    """The node cannot be asked any more, or does not answer. Nothing has changed; it can be asked again."""


@dataclass(slots=True)
class _ReadableSession(Generic[Wanted, Answer]):
    """A session that can be asked."""

    send: Callable[[Wanted], None]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    request: int = 0
    """The request that is on its way; 0 if none is."""
    answer: asyncio.Future[Answer] | None = None


class NodeReads(Generic[Wanted, Answer]):
    """Sends the requests of one kind, and hands out the answers."""

    def __init__(self, doubt: str) -> None:
        """Begin without sessions; `doubt` asks what may be wrong with a node that does not answer."""
        self._doubt = doubt
        self._sessions: dict[int, _ReadableSession[Wanted, Answer]] = {}
        self._numbers = count(1)

    def open(self, session: int, send: Callable[[Wanted], None]) -> None:
        """Let a session be asked; `send` gives a request to it and must not wait."""
        self._sessions[session] = _ReadableSession(send)

    def close(self, session: int) -> None:
        """Note that a session has ended. A caller who waits for its answer gets `NoAnswerError`."""
        ended = self._sessions.pop(session, None)
        if ended is not None and ended.answer is not None and not ended.answer.done():
            ended.answer.set_exception(NoAnswerError("its node is not connected any more"))

    def deliver(self, session: int, answer: Answer) -> None:
        """Take an answer that a node has sent. It is dropped if no caller waits for it."""
        asked = self._sessions.get(session)
        if asked is not None and asked.request == answer.request and asked.answer and not asked.answer.done():
            asked.answer.set_result(answer)

    async def read(self, session: int, wanted: Wanted, within_s: float | None = None) -> Answer:
        """Ask a session, and return the answer. Raises `NoAnswerError`, also if there is none in time."""
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
