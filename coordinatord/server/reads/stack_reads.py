"""Reads the stacks of a round's workers: for a person, or because the machine suspects a hang."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from coordinatord.core.rounds.effects import Look, StackSource
from coordinatord.core.rounds.events import Looked
from coordinatord.core.watching.stack_sources import seen_workers
from coordinatord.hints.seen_worker import SeenWorker
from coordinatord.protocol.stack_messages import Stacks, WorkerStacks
from coordinatord.runtime.tasks import Tasks
from coordinatord.server.driver import Driver
from coordinatord.server.sessions.node_reads import NoAnswerError, NodeReads

ANSWER_WITHIN_S = 5.0
"""How long to wait for a node's answer, which takes at most a second: a person waits for it."""


class SourceStacks(Struct, frozen=True):
    """The stacks of one node's workers."""

    source: StackSource
    workers: tuple[WorkerStacks, ...] = ()
    problem: str = ""
    """Why there are none; empty if there are."""


async def ask_all(
    reads: NodeReads, sources: Sequence[StackSource], within_s: float | None = None
) -> list[SourceStacks]:
    """Read all sources at once; wait at most `within_s` seconds, by default `ANSWER_WITHIN_S`."""
    within_s = ANSWER_WITHIN_S if within_s is None else within_s
    return await asyncio.gather(*(_ask(reads, source, within_s) for source in sources))


def seen_workers_of(answers: Sequence[SourceStacks]) -> list[SeenWorker]:
    """Return all requested workers; those of silent nodes have no stack."""
    return seen_workers((answer.source, answer.workers) for answer in answers)


async def _ask(reads: NodeReads, source: StackSource, within_s: float) -> SourceStacks:
    if source.session is None:
        return SourceStacks(source, problem=source.problem)
    try:
        answer = await reads.read(source.session, source.wanted, Stacks, within_s)
    except NoAnswerError as error:
        return SourceStacks(source, problem=str(error))
    return SourceStacks(source, answer.workers, answer.problem)


class HangLooks:
    """Carries out the machine's effects of class `Look`."""

    def __init__(self, driver: Driver, reads: NodeReads, tasks: Tasks) -> None:
        self._driver = driver
        self._reads = reads
        self._tasks = tasks
        driver.on(Look, self._start)

    def _start(self, look: Look) -> None:
        self._tasks.spawn(self._look(look), name="look at the workers")

    async def _look(self, look: Look) -> None:
        answers = await ask_all(self._reads, look.sources)
        self._driver.submit(Looked(look.run, look.round, look.number, tuple(seen_workers_of(answers))))
