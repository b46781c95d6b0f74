"""Reads the stacks of a round's workers, which show where they are in their code.

A person asks for them (`stacks_api`), or the machine does because it suspects a hang. It compares two such *looks* at
all workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coordinatord.core.rounds.effects import Look, WorkerSource
from coordinatord.core.rounds.events import Looked
from coordinatord.core.watching.worker_sources import SourceStacks, seen_workers
from coordinatord.protocol.stack_messages import AskStacks, Stacks
from coordinatord.runtime.tasks import Tasks
from coordinatord.server.driver import Driver
from coordinatord.server.sessions.node_reads import NoAnswerError, NodeReads

ANSWER_WITHIN_S = 5.0
"""How long to wait for a node's answer, for which a person may wait. It takes at most a second."""


async def ask_all(
    reads: NodeReads, run: str, number: int, sources: Sequence[WorkerSource], within_s: float, *, brief: bool = False
) -> list[SourceStacks]:
    """Read all sources in a round of a run at once; wait at most `within_s` seconds. `brief` is as in `AskStacks`."""

    async def ask(source: WorkerSource) -> SourceStacks:
        if source.session is None:
            return SourceStacks(source, problem=source.problem)
        wanted = AskStacks(1, run, number, source.local_ranks, brief)  # `NodeReads` replaces the 1
        try:
            answer = await reads.read(source.session, wanted, Stacks, within_s)
        except NoAnswerError as error:
            return SourceStacks(source, problem=str(error))
        return SourceStacks(source, answer.workers, answer.problem)

    return await asyncio.gather(*map(ask, sources))


def answer_looks(driver: Driver, reads: NodeReads, tasks: Tasks) -> None:
    """Have the driver's effects of class `Look` carried out from now on, and each answered with an event `Looked`."""

    async def answer(look: Look) -> None:
        answers = await ask_all(reads, look.run, look.round, look.sources, ANSWER_WITHIN_S, brief=True)
        driver.submit(Looked(look.run, look.round, look.number, seen_workers(answers)))

    def start(look: Look) -> None:
        tasks.spawn(answer(look), name="look at the workers")

    driver.on(Look, start)
