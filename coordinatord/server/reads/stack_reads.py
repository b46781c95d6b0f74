"""Reads the stacks of a round's workers, which show where they are in their code.

A person asks for them (`stacks_api`), or the machine does because it suspects a hang. It compares two such *looks* at
all workers.
"""

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


async def ask_all(reads: NodeReads, sources: Sequence[StackSource], within_s: float) -> list[SourceStacks]:
    """Read all sources at once; wait at most `within_s` seconds."""
    return await asyncio.gather(*(_ask(reads, source, within_s) for source in sources))


def seen_workers_of(answers: Sequence[SourceStacks]) -> list[SeenWorker]:
    """Return all requested workers in the form in which hangs are judged; those of silent nodes have no stack."""
    return seen_workers((answer.source, answer.workers) for answer in answers)


async def _ask(reads: NodeReads, source: StackSource, within_s: float) -> SourceStacks:
    if source.session is None:
        return SourceStacks(source, problem=source.problem)
    try:
        answer = await reads.read(source.session, source.wanted, Stacks, within_s)
    except NoAnswerError as error:
        return SourceStacks(source, problem=str(error))
    return SourceStacks(source, answer.workers, answer.problem)


def answer_looks(driver: Driver, reads: NodeReads, tasks: Tasks) -> None:
    """Register at the driver to carry out effects of class `Look`, and to answer each with an event `Looked`."""

    async def answer(look: Look) -> None:
        answers = await ask_all(reads, look.sources, ANSWER_WITHIN_S)
        driver.submit(Looked(look.run, look.round, look.number, tuple(seen_workers_of(answers))))

    def start(look: Look) -> None:
        tasks.spawn(answer(look), name="look at the workers")

    driver.on(Look, start)
