"""Serves the events of one job or of all jobs: as a list, or as server-sent events that follow new ones.

An event is a record of the store as people read it. Records are numbered, so a reader continues after the last event
that it has, also after a restart of the coordinator.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from functools import partial

from aiohttp import web
from msgspec import Struct
from msgspec.structs import asdict

from coordinatord.core.rounds.values.records import KINDS, JobForgotten
from coordinatord.protocol.http.api import ApiEvent, EventsAnswer
from coordinatord.runtime.local_time import now
from coordinatord.server.driver import Driver
from coordinatord.server.http.responses import (
    EVENT_STREAM,
    KEEP_ALIVE,
    MalformedQueryError,
    ReaderLimit,
    UnknownJobError,
    check_query,
    error_response,
    event_frame,
    number_in,
    respond,
    seconds_in,
    stream,
)
from coordinatord.server.reads.change_signal import ChangeSignal
from coordinatord.store.database_store import Store
from coordinatord.store.interface import EventPage, LoggedEvent, StoreError

AT_ONCE_MAX = 1_000
"""The limit of events in one answer: some 300 bytes each, and more than a person reads."""

FOLLOWERS_MAX = 100
"""The limit of followers, which read a stream: each reads the store at every event, and few people watch."""

REFUSAL = f"{FOLLOWERS_MAX} others follow already, the limit: try again later"

QUIET_S = 15.0
"""The interval of keep-alives without events: proxies close idle connections after a minute or less."""

NUMBER_MAX = 2**63 - 1
"""The limit of an event's number: SQLite's greatest integer."""

_ID = re.compile(r"(?:(?P<store>[0-9a-f]{1,32})-)?(?P<number>[0-9]{1,20})", re.ASCII)
"""The id of an event: the store's token and a number, since each store numbers its records itself. An id without a
token means this store."""


class _Selection(Struct, frozen=True):
    """The events that a client wants."""

    job: str | None
    """None for all jobs, and for events that belong to none."""
    kinds: frozenset[str]
    """Empty for all kinds."""
    since: float
    """The time of the oldest wanted event, in seconds since 1970."""
    last: int
    """How many of the newest events to begin with."""


class EventsApi:
    """The handler of requests for events."""

    def __init__(self, driver: Driver, store: Store, change_signal: ChangeSignal) -> None:
        self._driver = driver
        self._store = store
        self._change_signal = change_signal
        self._followers = ReaderLimit()
        paths = ("/v1/events", "/v1/jobs/{job:[^/]+}/events")
        self.routes = [web.get(path, self._serve, allow_head=False) for path in paths]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        job = request.match_info.get("job")
        check_query(request, "after", "last", "since", "kind")
        after = _after(request, self._store.identity)
        last = number_in(request.query, "last", AT_ONCE_MAX, AT_ONCE_MAX, least=1)
        selection = _Selection(job, _kinds(request), _since(request), last)
        await self._driver.written()  # so that events of earlier decisions are not missing
        if job is not None and job not in self._driver.machine.jobs:
            raise UnknownJobError(job, self._driver.machine.jobs)
        if EVENT_STREAM in request.headers.get("Accept", ""):
            with self._followers.admit(FOLLOWERS_MAX, REFUSAL):
                return await stream(request, self._frames(selection, after), self._change_signal)
        try:
            page = await self._read(selection, after)
        except StoreError as error:
            return error_response(request, 503, "cannot_read", f"the records cannot be read: {error}")
        events = tuple(self._event(logged) for logged in page.events)
        return respond(request, EventsAnswer(job=job, events=events, upto=self._id(page.upto)))

    async def _frames(self, selection: _Selection, after: int | None) -> AsyncGenerator[bytes]:
        """Yield existing events, then new ones, or a keep-alive if a read finds none, at least every `QUIET_S`.

        It ends when the job is forgotten.
        """
        while not self._change_signal.closed:
            version = self._change_signal.version
            page = await self._read(selection, after)
            yield b"".join(map(self._encoded, page.events)) or KEEP_ALIVE
            after = page.upto
            gone = selection.job is not None and selection.job not in self._driver.machine.jobs
            # The last event of a job is that it is forgotten; a reader of chosen kinds may not get it.
            if gone and (selection.kinds or any(logged.kind == JobForgotten.KIND for logged in page.events)):
                return
            if len(page.events) == AT_ONCE_MAX:
                continue  # there may be more
            await self._change_signal.wait_after(version, QUIET_S)

    async def _read(self, selection: _Selection, after: int | None) -> EventPage:
        """Return the events after a number, or the newest ones for None.

        If the store does not have the number yet, an old copy of it was restored: then return the newest events.
        """
        most = selection.last if after is None else AT_ONCE_MAX
        read = partial(self._store.read_events, kinds=selection.kinds, since=selection.since)
        page = await read(selection.job, after, most)
        if after is not None and page.upto < after:
            return await read(selection.job, None, AT_ONCE_MAX)
        return page

    def _event(self, logged: LoggedEvent) -> ApiEvent:
        kind = KINDS.get(logged.kind)
        what = " ".join(kind.kind_words()) if kind else logged.kind
        return ApiEvent(id=self._id(logged.number), what=what, **asdict(logged))

    def _encoded(self, logged: LoggedEvent) -> bytes:
        event = self._event(logged)
        return event_frame("record", event, event.id)

    def _id(self, number: int) -> str:
        return f"{self._store.identity}-{number}"


def _after(request: web.Request, identity: str) -> int | None:
    """Return the number of the client's last event; None if it has none of this store. Raises `MalformedQueryError`."""
    text = request.headers.get("Last-Event-ID") or request.query.get("after")
    if text is None:
        return None
    found = _ID.fullmatch(text)
    if found is None:
        raise MalformedQueryError(f"after is the id of an event, or its number, not {text[:40]!r}")
    store, number = found["store"], int(found["number"])
    return min(number, NUMBER_MAX) if store in {None, identity} else None


def _kinds(request: web.Request) -> frozenset[str]:
    """Parse the requested kinds, such as `node-lost` or `NodeLost`. Raises `MalformedQueryError`."""
    known = {name.lower(): name for name in KINDS}
    requested = [kind for text in request.query.getall("kind", ()) for kind in text.split(",")]
    plain = {re.sub(r"[-_ ]", "", kind).lower(): kind for kind in requested}
    if unknown := [kind for name, kind in plain.items() if name not in known]:
        names = ", ".join("-".join(kind.kind_words()) for kind in KINDS.values())
        raise MalformedQueryError(f"kind is one or several of {names}, not {unknown[0][:40]!r}")
    return frozenset(known[name] for name in plain)


def _since(request: web.Request) -> float:
    """Return the time that `since` means. Raises `MalformedQueryError`."""
    age_s = seconds_in(request, "since", "how many seconds ago")
    return 0.0 if age_s is None else now().timestamp() - age_s
