"""Serves the stacks of a job's workers, and a verdict on whether they hang, for a person who asks.

One *look*, at all workers at one moment, shows where they are in their code. If it could mean slow work as well as a
hang, a second look tells which it is.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from msgspec.structs import asdict

from coordinatord.core.shown.stack_groups import group_stacks
from coordinatord.core.watching.look_comparison import APART_S, judge_pair, may_be_slow
from coordinatord.core.watching.worker_sources import NoStacksError, seen_workers, worker_sources
from coordinatord.hints.hang_verdict import find_hang
from coordinatord.protocol.http.stack_answers import HangStatus, StacksAnswer
from coordinatord.server.driver import Driver
from coordinatord.server.http.log_query import parse_ranks
from coordinatord.server.http.responses import ReaderLimit, UnknownJobError, check_query, error_response, respond
from coordinatord.server.reads.stack_reads import ANSWER_WITHIN_S, ask_all
from coordinatord.server.sessions.node_reads import NodeReads

READERS_MAX = 4
"""The limit of readers at one time: each has the stacks of a whole job in memory, and few people read them."""

SECOND_WITHIN_S = 3.0
"""How long the second look waits for a node. The first look waits up to 5 s, and the pause between them takes 1 s. So
both end within the 10 s for which nodeclient waits."""

SLOW_WORK = "no verdict: one look shows a hang, but a second look shows that a worker or its data makes progress"
"""The note if the second look shows slow work instead of a hang."""


class StacksApi:
    """The handler of requests for stacks."""

    def __init__(self, driver: Driver, reads: NodeReads) -> None:
        self._driver = driver
        self._reads = reads
        self._readers = ReaderLimit()
        self.routes = [web.get("/v1/jobs/{job:[^/]+}/stacks", self._serve, allow_head=False)]

    async def _serve(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]
        check_query(request, "rank")
        ranks = parse_ranks(request.query)
        refusal = f"{READERS_MAX} others read stacks already, the limit: try again later"
        with self._readers.admit(READERS_MAX, refusal):
            run = await self._driver.written_run(job)
            if run is None:
                raise UnknownJobError(job, self._driver.machine.jobs)
            run_id, number = run.id, run.durable.round
            try:
                sources = worker_sources(run, ranks)
            except NoStacksError as error:
                return error_response(request, 404, "no_stacks", str(error))
            answers = await ask_all(self._reads, run_id, number, sources, ANSWER_WITHIN_S)
            first = seen_workers(answers)
            hang = None if ranks else find_hang(first)  # only all workers together show a hang
            looks_again = hang is not None and may_be_slow(hang, first)
            if looks_again:
                await asyncio.sleep(APART_S)
                answers = await ask_all(self._reads, run_id, number, sources, SECOND_WITHIN_S)
                hang = judge_pair(first, seen_workers(answers))
        notes = [f"node {answer.source.node}: {answer.problem}" for answer in answers if answer.problem]
        if looks_again and hang is None and not notes:  # with a note, the second look has not seen all
            notes = [SLOW_WORK]
        answer = StacksAnswer(
            job=job,
            run=run_id,
            round=number,
            verdict=None if hang is None else HangStatus(**asdict(hang)),
            groups=group_stacks(answers),
            notes=tuple(dict.fromkeys(notes)),
        )
        return respond(request, answer)
