"""Polls the nodes of training rounds for their workers' last arrivals in collectives.

The arrivals are in the workers' flight recorders, so they cost a step nothing. An answer also shows the offset of the
node's clock, which the node read between the question and the receipt of the answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from coordinatord.core.rounds.events import Compared, NodeArrivals
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.watching.arrivals import ArrivalSource, arrival_sources, ask_at, can_be_compared
from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.runtime.tasks import Tasks
from coordinatord.server.driver import Driver, iterate_jobs
from coordinatord.server.sessions.node_reads import NoAnswerError, NodeReads

LOOK_S = 0.5
"""How often to check which rounds are due. Those that are due before the next check are asked at their exact time: half
a second may be many steps."""

PIECE = 1_000
"""Nodes of jobs that are checked without a pause, as in `series_sampler`."""

ANSWER_WITHIN_S = 5.0
"""How long to wait for an answer: a node takes at most two seconds."""


@dataclass(slots=True)
class _LastAsked:
    """When the workers of a round were last asked."""

    round: int
    trains_since: float
    asked_at: float | None = None
    """When the last question was due, possibly soon."""


class ArrivalReads:
    """Asks the workers of all live runs, round after round."""

    def __init__(self, driver: Driver, reads: NodeReads[AskArrivals, Arrivals], tasks: Tasks) -> None:
        self._driver = driver
        self._reads = reads
        self._tasks = tasks
        self._asked: dict[str, _LastAsked] = {}

    async def watch(self) -> None:
        """Poll for as long as the daemon serves."""
        while True:
            await asyncio.sleep(LOOK_S)
            seen: dict[str, _LastAsked] = {}
            async for run in iterate_jobs(self._driver, PIECE):
                if can_be_compared(run):
                    seen[run.id] = self._ask_if_due(run)
            self._asked = seen

    def _ask_if_due(self, run: Run) -> _LastAsked:
        now, asked = self._driver.now, self._asked.get(run.id)
        if asked is None or asked.round != run.durable.round:
            asked = _LastAsked(run.durable.round, now)
        due = max(now, ask_at(run, asked.trains_since, asked.asked_at))
        if due < now + LOOK_S:
            asked.asked_at = due
            self._tasks.spawn(self._ask_all(run, due), name="arrivals")
        return asked

    async def _ask_all(self, run: Run, due: float) -> None:
        await asyncio.sleep(due - self._driver.now)
        if not can_be_compared(run):
            return
        number = run.durable.round
        answers = await asyncio.gather(*(self._ask(source) for source in arrival_sources(run)))
        given = tuple(answer for answer in answers if answer is not None)
        self._driver.submit(Compared(run.id, number, given))

    async def _ask(self, source: ArrivalSource) -> NodeArrivals | None:
        """Ask one node; return None if it does not answer. Arrivals of other nodes' workers are dropped."""
        asked_at = self._driver.now
        try:
            answer = await self._reads.read(source.session, source.wanted, ANSWER_WITHIN_S)
        except NoAnswerError:
            return None
        answered_at = self._driver.now
        error_s = max(0.0, answered_at - asked_at - answer.held_s) / 2
        ranks = {source.first_rank + local_rank for local_rank in source.wanted.local_ranks}
        workers = tuple(worker for worker in answer.workers if worker.rank in ranks)
        return NodeArrivals(source.node, answered_at - error_s, error_s, answer.clock_s, workers)
