"""Streams the live page's data as server-sent events: `GET /v1/stream`; with `?job=` it also has one job in detail.

A *topic* is the list of jobs, or one job. Each event is a level: it has the whole state of its topic, and not a change.
So a slow viewer may skip events, and a page that reconnects needs no earlier ones. A state is encoded once for all
viewers, and only so often that it takes a small share of the event loop's time. Two events are of no topic: `viewer`,
which comes first, and `alive`, which is sent if nothing else was for `ALIVE_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from aiohttp import web
from msgspec import Struct

from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.round_history import RoundHistory
from coordinatord.core.shown.job_view import charged_view, drained_view, summary_view, whole_view
from coordinatord.core.shown.time_series import TimeSeries
from coordinatord.protocol.http.api import NodeStatus
from coordinatord.protocol.http.page_events import ON_PAGE, NodeTable, PageJob, PageStatus, PageViewer, SeriesStatus
from coordinatord.protocol.schema import plain_without
from coordinatord.runtime import __version__
from coordinatord.runtime.logs import fields
from coordinatord.security.gatekeeper import ANYBODY, Caller
from coordinatord.security.token_store import ALL_JOBS
from coordinatord.server.driver import Driver
from coordinatord.server.http.page_access import viewer_of
from coordinatord.server.http.responses import ReaderLimit, check_query, event_frame, stream
from coordinatord.server.reads.change_signal import ChangeSignal
from coordinatord.server.reads.rounds_reader import RoundsReader
from coordinatord.server.reads.series_sampler import SeriesSampler
from coordinatord.server.sessions.connections import CALLER
from coordinatord.store.interface import StoreError

log = logging.getLogger(__name__)

VIEWERS_MAX = 100
"""The limit of open pages: ten times as many as a team opens. Each needs a connection and, if slow, one old state."""

AFTER_RECORD_S = 0.25
"""The least time between two states if there are new records: it seems immediate, and combines a burst of records."""

EVERY_S = 1.0
"""The time between two states without new records: steps and heartbeats come once a second."""

SHARE = 0.03
"""The limit of a topic's share of the loop's time, since nodes have priority: with 10,000 nodes a state takes 0.1 s or
more, so it is made only every few seconds."""

ALIVE_S = 5.0
"""The interval of keep-alives. They show a page that its connection works, and keep proxies from closing it as idle."""

RETRY_MS = 1_000
"""How long a browser waits before it reconnects: as long as a node waits."""

COLUMNS = NodeStatus.__struct_fields__
"""The fields of each node on the page."""

_row = attrgetter(*COLUMNS)


class _TopicState(Struct, frozen=True):
    """The present state of a topic."""

    shown: PageStatus | PageJob
    is_live: bool
    """Whether it changes with time, and not only with a record."""


MakeState = Callable[[], Awaitable[_TopicState]]


@dataclass(eq=False)
class _Topic:
    """The list of jobs, or one job, with its last state."""

    name: str
    """The name of its events: `jobs` or `job`."""
    make_state: MakeState
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while its state is made."""
    viewers: int = 0
    """The number of its viewers."""
    frame: bytes = b""
    """The last state as a server-sent event."""
    version: int = -1
    """The change signal's version at the last state; -1 before the first."""
    store_error: str | None = None
    """The machine's `store_error` at the last state."""
    made_at: float = -math.inf
    """The time of the last state, by the loop's clock."""
    cost_s: float = 0.0
    """The seconds of CPU time that the loop used while the last state was made, other work of a busy loop included."""
    is_live: bool = True
    """Whether the last state changes with time."""

    async def renew(self, version: int, store_error: str | None, now: float) -> None:
        """Make the state again; the arguments are kept to tell when it is out of date."""
        began = time.thread_time()
        state = await self.make_state()
        self.frame, self.is_live = event_frame(self.name, plain_without(state.shown, ON_PAGE)), state.is_live
        self.version, self.store_error, self.made_at = version, store_error, now
        self.cost_s = time.thread_time() - began

    def due_at(self, version: int, store_error: str | None, *, has_seen: bool) -> float:
        """Return when to make the next state for a viewer; infinity if only a record will change the state.

        A viewer without a state (not `has_seen`) is not shown an old one, since the ages in it would be wrong.
        """
        changed = version > self.version or store_error != self.store_error
        if has_seen and not changed and not self.is_live:
            return math.inf
        return self.made_at + max(AFTER_RECORD_S if changed else EVERY_S, self.cost_s / SHARE)


@dataclass(eq=False)
class LiveUpdates:
    """The streams of all viewers of the live page."""

    _driver: Driver
    _change_signal: ChangeSignal
    _rounds_reader: RoundsReader
    _sampler: SeriesSampler
    _insecure: bool
    """Whether no token is needed."""

    def __post_init__(self) -> None:
        self._jobs = _Topic("jobs", partial(self._show_jobs, ANYBODY))
        """The topic of all jobs. Its state is kept without viewers, for the next viewer."""
        self._viewed_topics: dict[tuple[str, str], _Topic] = {}
        """The topics with viewers, by the name of their events, and by job or pattern of jobs."""
        self._viewers = ReaderLimit()
        self.routes = [web.get("/v1/stream", self._serve, allow_head=False)]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        check_query(request, "job")
        refusal = f"{VIEWERS_MAX} pages are open already, and this is one too many: close another one"
        with (
            self._viewers.admit(VIEWERS_MAX, refusal),
            self._topics(CALLER.get(), request.query.get("job")) as topics,
        ):
            return await stream(request, self._frames(viewer_of(request), topics), self._change_signal)

    @contextlib.contextmanager
    def _topics(self, caller: Caller, job: str | None) -> Iterator[list[_Topic]]:
        """Yield the topics of a viewer: the list of jobs that it may see, and one job."""
        with contextlib.ExitStack() as viewed:
            topics = [self._jobs]
            if caller.jobs != ALL_JOBS:
                topics = [viewed.enter_context(self._viewed("jobs", caller.jobs, partial(self._show_jobs, caller)))]
            if job is not None:
                topics.append(viewed.enter_context(self._viewed("job", job, partial(self._show_job, job))))
            yield topics

    @contextlib.contextmanager
    def _viewed(self, name: str, subject: str, make_state: MakeState) -> Iterator[_Topic]:
        """Yield a topic, which is dropped after its last viewer."""
        topic = self._viewed_topics.setdefault((name, subject), _Topic(name, make_state))
        topic.viewers += 1
        try:
            yield topic
        finally:
            topic.viewers -= 1
            if not topic.viewers:
                del self._viewed_topics[name, subject]

    async def _frames(self, viewer: PageViewer, topics: list[_Topic]) -> AsyncGenerator[bytes]:
        """Yield the events for one viewer until the daemon ends or must not lead; then its browser reconnects."""
        yield b"retry: %d\n\n%s" % (RETRY_MS, event_frame("viewer", viewer))
        sent: dict[str, bytes] = {}
        sent_at = self._driver.now
        while not self._change_signal.closed and self._driver.sharing.may_act():
            for topic in topics:
                await self._renew(topic, has_seen=topic.name in sent)
                if sent.get(topic.name) is not topic.frame:
                    sent[topic.name] = topic.frame
                    yield topic.frame
                    sent_at = self._driver.now
            if self._driver.now - sent_at >= ALIVE_S:
                yield event_frame("alive", {})
                sent_at = self._driver.now
            await self._pause(topics, sent_at + ALIVE_S)

    async def _renew(self, topic: _Topic, *, has_seen: bool) -> None:
        """Make the state of a topic again if that is due for a viewer; first wait until all decisions are durable."""
        if self._due_at(topic, has_seen=has_seen) > self._driver.now:
            return
        await self._driver.written()
        async with topic.turn:
            if self._due_at(topic, has_seen=has_seen) <= self._driver.now:  # another viewer may have made it meanwhile
                await topic.renew(self._change_signal.version, self._driver.machine.store_error, self._driver.now)

    def _due_at(self, topic: _Topic, *, has_seen: bool) -> float:
        return topic.due_at(self._change_signal.version, self._driver.machine.store_error, has_seen=has_seen)

    async def _pause(self, topics: list[_Topic], at_latest: float) -> None:
        """Wait until one of the topics is due, by the clock or because of a record.

        A record makes topics due earlier, but not at once. Further records do not make them due earlier again, so the
        second wait ignores records.
        """
        signal, version = self._change_signal, self._change_signal.version
        await signal.wait_after(version, self._seconds_to_next(topics, at_latest))
        if signal.version > version:
            await signal.wait_after(math.inf, self._seconds_to_next(topics, at_latest))

    def _seconds_to_next(self, topics: list[_Topic], at_latest: float) -> float:
        return min(at_latest, *(self._due_at(topic, has_seen=True) for topic in topics)) - self._driver.now

    # States

    async def _show_jobs(self, caller: Caller) -> _TopicState:
        machine, now = self._driver.machine, self._driver.now
        cluster, sees_all = machine.cluster, caller.jobs == ALL_JOBS
        runs = [run for run in cluster.jobs.values() if caller.is_for(run.job)]
        jobs = tuple(summary_view(run, now, machine.store_error) for run in runs)
        status = PageStatus(
            version=__version__,
            jobs=jobs,
            drained=drained_view(cluster.durable) if sees_all else (),
            charged=charged_view(cluster.durable, machine.policy, now) if sees_all else (),
            insecure=self._insecure,
            shared=self._driver.sharing.status(),
        )
        return _TopicState(status, any(map(_is_live, runs)))

    async def _show_job(self, job: str) -> _TopicState:
        found = await self._find(job)
        if found is None:
            return _TopicState(PageJob(job=job, status=None, nodes=NodeTable(columns=COLUMNS, rows=())), is_live=False)
        run, rounds = found
        shown = whole_view(run, rounds, self._driver.now, self._driver.machine.store_error)
        nodes = NodeTable(columns=COLUMNS, rows=tuple(map(_row, shown.nodes)))
        series = _series(self._sampler.sample_run(run, rounds))
        page = PageJob(job=job, status=shown, nodes=nodes, series=series, revision=run.revision)
        return _TopicState(page, _is_live(run))

    async def _find(self, job: str) -> tuple[Run, RoundHistory] | None:
        """Return the run of a job and its rounds, or no rounds if the store cannot be read; None for an unknown job."""
        try:
            return await self._rounds_reader.find(job)
        except StoreError as error:
            log.warning("job %s is shown without its rounds: %s", job, error, extra=fields("rounds_unread", job=job))
            run = self._driver.machine.jobs.get(job)
            return None if run is None else (run, RoundHistory())


def _is_live(run: Run) -> bool:
    """Whether the view of a run changes with time: it goes on, or nodes are connected and fetch its outcome."""
    return not run.durable.state.ended or bool(run.members)


def _series(series: TimeSeries) -> SeriesStatus:
    """Return a series, rounded to the precision of a chart."""
    return SeriesStatus(
        span_s=series.span_s,
        upto_s=round(series.upto_s, 3),
        steps_per_s=tuple(None if pace is None else float(f"{pace:.4g}") for pace in series.steps_per_s),
        training_s=tuple(round(seconds, 3) for seconds in series.training_s),
        restarts=tuple(series.restarts),
    )
