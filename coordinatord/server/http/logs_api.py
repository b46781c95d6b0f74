"""Serves workers' logs, which it reads from the nodes on request; the coordinator stores none.

An answer is JSON of a limited size, or a stream of server-sent events, which may follow new output.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from aiohttp import web

from coordinatord.core.shown.log_sources import LogSources, NoLogError
from coordinatord.protocol.http.log_answers import LOG_TEXT_MAX, LogPart, LogsAnswer, LogStatus
from coordinatord.server.driver import Driver
from coordinatord.server.http.log_query import PARAMETERS, LogQuery, parse_query
from coordinatord.server.http.log_reading import LogReading
from coordinatord.server.http.responses import (
    EVENT_STREAM,
    KEEP_ALIVE,
    MalformedQueryError,
    ReaderLimit,
    UnknownJobError,
    check_query,
    error_response,
    event_frame,
    respond,
    stream,
)
from coordinatord.server.reads.change_signal import ChangeSignal
from coordinatord.server.sessions.node_reads import NodeReads
from coordinatord.store.database_store import Store

READERS_MAX = 16
"""The limit of readers at one time: each has one chunk in memory, and few people read logs at once."""

QUIET_S = 15.0
"""The interval of keep-alives without new output: proxies close idle connections after a minute or less."""

GENERAL = (None, "")
"""Rank and stream of a part that is about no log in particular."""


class LogsApi:
    """The handler of requests for logs."""

    def __init__(self, driver: Driver, store: Store, reads: NodeReads, change_signal: ChangeSignal) -> None:
        self._driver = driver
        self._store = store
        self._reads = reads
        self._change_signal = change_signal
        self._readers = ReaderLimit()
        self.routes = [web.get("/v1/jobs/{job:[^/]+}/logs", self._serve, allow_head=False)]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        job, streams = request.match_info["job"], EVENT_STREAM in request.headers.get("Accept", "")
        query = _query(request, streams=streams)
        with self._readers.admit(READERS_MAX, f"{READERS_MAX} others read logs already, the limit: try again later"):
            run = await self._driver.written_run(job)
            if run is None:
                raise UnknownJobError(job, self._driver.machine.jobs)
            reading = LogReading(self._driver, self._store, self._reads, self._change_signal, run, query)
            try:
                found = await reading.find()
                if streams:
                    return await stream(request, _frames(reading, found), self._change_signal)
                return respond(request, await _answer(reading, found, job))
            except NoLogError as error:
                return error_response(request, 404, "unknown_log", str(error))


async def _frames(reading: LogReading, found: LogSources) -> AsyncGenerator[bytes]:
    """Yield the parts of the logs, and a keep-alive after each `QUIET_S` without any."""
    loop = asyncio.get_running_loop()
    yielded_at = loop.time()
    async with aclosing(reading.parts(found)) as parts:
        async for part in parts:
            if part is not None or loop.time() - yielded_at >= QUIET_S:
                yield KEEP_ALIVE if part is None else event_frame("log", part)
                yielded_at = loop.time()
    if not reading.is_interrupted:
        yield event_frame("log", LogPart(over=True))


def _query(request: web.Request, *, streams: bool) -> LogQuery:
    """Parse the query of a request. Raises `MalformedQueryError`."""
    check_query(request, *PARAMETERS)
    query = parse_query(request.query)
    if query.follow and not streams:
        raise MalformedQueryError(f"to follow, ask for a stream: Accept: {EVENT_STREAM}")
    return query


async def _answer(reading: LogReading, found: LogSources, job: str) -> LogsAnswer:
    """Return all logs in one answer, with at most `LOG_TEXT_MAX` characters of text."""
    texts: dict[tuple[int | None, str], list[str]] = defaultdict(list)
    notes: dict[tuple[int | None, str], list[str]] = defaultdict(list)
    for source in found.sources:
        notes[source.rank, source.stream].append(source.problem)
    left = LOG_TEXT_MAX
    async with aclosing(reading.parts(found)) as parts:
        async for part in parts:
            if part is None or (part.rank is None and part.node):  # nothing new, or a problem that is in `notes`
                continue
            texts[part.rank, part.stream].append(part.text[:left])
            notes[part.rank, part.stream].append(part.note)
            left -= len(part.text)
            if left < 0:
                text = f"the rest is left out, beyond {LOG_TEXT_MAX:,} characters: ask for a stream of it"
                notes[GENERAL].append(text)
                break
    logs = tuple(
        LogStatus(
            rank=source.rank,
            node=source.node,
            host=source.host,
            stream=source.stream,
            file=source.file,
            text="".join(texts[source.rank, source.stream]),
            note=_joined(notes[source.rank, source.stream]),
        )
        for source in found.sources
    )
    return LogsAnswer(job=job, run=reading.run_id, round=reading.round, logs=logs, note=_joined(notes[GENERAL]))


def _joined(notes: Iterable[str]) -> str:
    return "; ".join(filter(None, notes))
