"""Polls the nodes of training rounds for their workers' last arrivals in collectives, to find laggards.

A *laggard* is the worker that comes last to most collectives, so that all others wait for it. torch's flight recorder
in each worker has the arrivals anyway, so polling does not slow down a step.

Arrivals are by the clocks of different hosts. Each answer also has the present time by the node's clock. That moment
lies between our request and the answer, which bounds the offset of the node's clock from ours.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from coordinatord.core.rounds.effects import WorkerSource
from coordinatord.core.rounds.events import Compared, NodeArrivals
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.watching.arrivals import ask_at, can_be_compared, most_arrivals
from coordinatord.core.watching.worker_sources import worker_sources
from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.runtime.tasks import Tasks
from coordinatord.server.driver import Driver, iterate_jobs
from coordinatord.server.sessions.node_reads import NoAnswerError, NodeReads

POLL_EVERY_S = 0.5
"""How often to check which rounds are due. A round that is due before the next check is read at its exact time, because
half a second may be many steps."""

ANSWER_WITHIN_S = 5.0
"""How long to wait for an answer: a node takes at most two seconds."""


@dataclass(slots=True)
class _LastAsked:
    """When the workers of a round were last asked; times are by the driver's clock."""

    round: int
    trains_since: float
    """When the round was first seen to train."""
    asked_at: float | None = None
    """When the last request was due, or will be within `POLL_EVERY_S`; None before the first."""


class ArrivalReads:
    """Reads the arrivals in all rounds that train; `core.watching.arrivals` decides when."""

    def __init__(self, driver: Driver, reads: NodeReads, tasks: Tasks) -> None:
        self._driver = driver
        self._reads = reads
        self._tasks = tasks
        self._asked: dict[str, _LastAsked] = {}
        """The last requests, by the run's id."""

    async def watch(self) -> None:
        """Poll while the daemon serves."""
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            asked: dict[str, _LastAsked] = {}
            async for run in iterate_jobs(self._driver):
                if can_be_compared(run):
                    asked[run.id] = self._ask_if_due(run)
            self._asked = asked

    def _ask_if_due(self, run: Run) -> _LastAsked:
        now, asked = self._driver.now, self._asked.get(run.id)
        if asked is None or asked.round != run.durable.round:
            asked = _LastAsked(run.durable.round, now)
        due = max(now, ask_at(run, asked.trains_since, asked.asked_at))
        if due < now + POLL_EVERY_S:
            asked.asked_at = due
            self._tasks.spawn(self._ask_all(run, due), name="arrivals")
        return asked

    async def _ask_all(self, run: Run, due: float) -> None:
        await asyncio.sleep(due - self._driver.now)
        if not can_be_compared(run):
            return
        number, most = run.durable.round, most_arrivals(run)
        wanted = [
            (source, AskArrivals(1, run.id, number, source.local_ranks, most))  # `NodeReads` replaces the 1
            for source in worker_sources(run)
        ]
        answers = await asyncio.gather(*(self._ask(*asked) for asked in wanted))
        self._driver.submit(Compared(run.id, number, tuple(answer for answer in answers if answer is not None)))

    async def _ask(self, source: WorkerSource, wanted: AskArrivals) -> NodeArrivals | None:
        """Ask one node; return None if it cannot answer. Arrivals of other nodes' workers are dropped."""
        asked_at = self._driver.now
        if source.session is None:
            return None
        try:
            answer = await self._reads.read(source.session, wanted, Arrivals, ANSWER_WITHIN_S)
        except NoAnswerError:
            return None
        if answer.problem:
            return None
        answered_at = self._driver.now
        # The node read its clock when it sent the answer. Only the sum of the times of both ways is known.
        error_s = max(0.0, answered_at - asked_at - answer.held_s) / 2
        workers = tuple(worker for worker in answer.workers if worker.rank in source.ranks)
        return NodeArrivals(source.node, answered_at - error_s, error_s, answer.clock_s, workers)
