"""What happened, to jobs or to all, over plain HTTP: as a list, or as server-sent events that go on as more happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

from aiohttp import web

from coordinatord.core.records import KINDS
from coordinatord.server.answers import SENDS, complain, respond, unknown_job
from coordinatord.server.driver import Driver
from coordinatord.server.feed import Feed
from coordinatord.store.interface import Happening, Store, StoreError

AT_ONCE_MAX = 1_000
"""In one answer: some 300 bytes each, and more than a person reads."""

FOLLOWERS_MAX = 100
"""Each costs a look into the store whenever something happens; people who watch are few."""

QUIET_S = 15.0
"""Between two signs of life while nothing happens: proxies drop what is silent for a minute or less."""

NUMBER_MAX = 2**63 - 1
"""As SQLite counts."""


class Happenings:
    """Tells from the store, where everything durable is."""

    def __init__(self, driver: Driver, store: Store, feed: Feed) -> None:
        self._driver = driver
        self._store = store
        self._feed = feed
        self._followers = 0

    def routes(self) -> list[web.RouteDef]:
        """Return what is served where."""
        return [web.get("/v1/events", self._serve), web.get("/v1/jobs/{job}/events", self._serve)]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        job = request.match_info.get("job")
        try:
            after = _after(request)
        except ValueError as error:
            return complain(request, 400, "malformed", str(error))
        if job is not None and job not in self._driver.machine.jobs:
            return unknown_job(request, job)
        if SENDS in request.headers.get("Accept", ""):
            return await self._follow(request, job, after)
        try:
            found = await self._store.happenings(job, await self._known(after), AT_ONCE_MAX)
        except StoreError as error:
            return complain(request, 503, "cannot_read", f"the records cannot be read: {error}")
        return respond(request, {"job": job, "events": [_plain(one) for one in found]})

    async def _follow(self, request: web.Request, job: str | None, after: int) -> web.StreamResponse:
        if self._followers >= FOLLOWERS_MAX:
            return complain(request, 503, "busy", f"{FOLLOWERS_MAX} others follow already, the limit")
        response = web.StreamResponse(headers={"Content-Type": SENDS, "Cache-Control": "no-store"})
        self._followers += 1
        try:
            await response.prepare(request)
            async for found in self._news(job, after):
                await response.write(b"".join(map(_sent, found)) or b": nothing new\n\n")
        except (ConnectionError, StoreError):
            pass  # whoever follows comes again, with the number of the last event
        finally:
            self._followers -= 1
        return response

    async def _news(self, job: str | None, after: int) -> AsyncIterator[Sequence[Happening]]:
        """Yield what there is, then what comes, and nothing now and then; ends when the job is forgotten."""
        after = await self._known(after)
        while not self._feed.closed:
            version = self._feed.version
            found = await self._store.happenings(job, after, AT_ONCE_MAX)
            yield found
            after = found[-1].number if found else after
            if job is not None and job not in self._driver.machine.jobs:
                return
            try:
                async with asyncio.timeout(QUIET_S):
                    await self._feed.beyond(version)
            except TimeoutError:
                yield ()

    async def _known(self, after: int) -> int:
        """Return the number to go on from: from the beginning, for a client whose number another store gave."""
        newest = await self._store.happenings(None, 0, 1)
        return after if newest and after <= newest[-1].number else 0


def _after(request: web.Request) -> int:
    """Return the number of the last event that the client has. Raises `ValueError`."""
    text = request.headers.get("Last-Event-ID") or request.query.get("after") or "0"
    if not text.isdecimal() or not text.isascii() or int(text) > NUMBER_MAX:
        raise ValueError(f"after is the number of an event, not {text[:40]!r}")
    return int(text)


def _plain(one: Happening) -> dict[str, Any]:
    kind = KINDS.get(one.kind)
    return asdict(one) | {"what": " ".join(kind.words()) if kind else one.kind}


def _sent(one: Happening) -> bytes:
    data = json.dumps(_plain(one))
    return f"id: {one.number}\nevent: record\ndata: {data}\n\n".encode()
