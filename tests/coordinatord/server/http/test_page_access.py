"""A browser is let in by a link that works once, and may then do what the link's token may, from our own page alone."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientSession, DummyCookieJar, TCPConnector

from coordinatord.protocol.access_token import AccessToken, Role
from coordinatord.security.browser_sessions import SESSION_S, BrowserSessions
from coordinatord.security.gatekeeper import FAILURES_MAX
from coordinatord.security.identity import CERTIFICATE, KEY
from coordinatord.security.setup import FOLDER
from coordinatord.server.http.browser_guard import is_on_this_host
from coordinatord.server.sessions import revocation
from tests.coordinatord.server.conftest import Start
from tests.support.programs import TIMEOUT_S
from tests.support.secured import TRUSTING, Secured, secured, serving

DRAIN = "/v1/nodes/x/drain"

REASON = {"by": "page", "reason": "fan", "ahead": True}


class Visitor:
    """Whoever sends requests to one coordinator: a program, or a browser with a cookie."""

    def __init__(self, url: str, client: ClientSession) -> None:
        self.url = url
        self.client = client
        self.cookie = ""
        """The header `Set-Cookie` of the last answer; empty if it had none."""

    @property
    def origin(self) -> dict[str, str]:
        """What a browser says of our own page."""
        return {"Origin": self.url, "Sec-Fetch-Site": "same-origin"}

    @property
    def session(self) -> dict[str, str]:
        """The cookie as a browser sends it."""
        return {"Cookie": self.cookie.partition(";")[0]}

    async def get(self, path: str, **headers: str) -> int:
        """Return the status of the answer."""
        async with self.client.get(f"{self.url}{path}", headers=headers) as answer:
            return answer.status

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        """Return the status and the answer."""
        async with self.client.post(f"{self.url}{path}", json=body, headers=headers) as answer:
            self.cookie = answer.headers.get("Set-Cookie", self.cookie)
            return answer.status, await answer.json()

    async def link(self, token: AccessToken) -> str:
        """Return the code of a new link."""
        status, answer = await self.post("/v1/page/link", {}, Authorization=f"Bearer {token.text}")
        assert (status, answer["role"]) == (200, token.role), answer
        return str(answer["code"])

    async def enter(self, token: AccessToken) -> None:
        """Become a browser that was let in."""
        status, answer = await self.post("/v1/page/session", {"code": await self.link(token)}, **self.origin)
        assert (status, answer["role"]) == (200, token.role), answer


@pytest.fixture
def ours(tmp_path: Path) -> Secured:
    return secured(tmp_path)


@asynccontextmanager
async def visiting(ours: Secured) -> AsyncIterator[Visitor]:
    headers = {"Accept": "application/json"}
    client = ClientSession(connector=TCPConnector(ssl=TRUSTING), headers=headers, cookie_jar=DummyCookieJar())
    async with serving(ours) as server, client:
        yield Visitor(server.url, client)


async def test_a_link_becomes_a_cookie_that_no_script_and_no_other_site_can_use(ours: Secured) -> None:
    async with visiting(ours) as visitor:
        for path, status in (("/", 200), ("/page/app.js", 200), ("/v1/stream", 401), ("/v1/page/none", 401)):
            assert await visitor.get(path) == status
        code = await visitor.link(ours.token(Role.ADMIN))
        status, answer = await visitor.post("/v1/page/session", {"code": code}, **visitor.origin)
        assert (status, answer) == (200, {"token": "first-admin", "role": "admin"})
        name = re.escape(f"__Host-coordinatord-{ours.security.pin[:16]}")
        assert re.fullmatch(
            rf"{name}=[0-9a-f]{{64}}\.\d+\.[a-z2-7]{{52}}; HttpOnly; Max-Age=43200; Path=/; SameSite=Strict; Secure",
            visitor.cookie,
        )
        assert await visitor.get("/v1/jobs", **visitor.session) == 200
        status, answer = await visitor.post("/v1/page/session", {"code": code}, **visitor.origin)
        assert (status, answer["error"]) == (401, "unknown_link")


async def test_a_page_may_do_what_its_token_may(ours: Secured) -> None:
    async with visiting(ours) as visitor:
        await visitor.enter(ours.add("r", Role.READ))
        status, answer = await visitor.post(DRAIN, REASON, **visitor.session, **visitor.origin)
        assert (status, answer["error"]) == (403, "role")
        await visitor.enter(ours.token(Role.ADMIN))
        status, answer = await visitor.post(DRAIN, REASON, **visitor.session, **visitor.origin)
        assert (status, answer["done"]) == (200, True)
        async with visitor.client.get(f"{visitor.url}/v1/events", headers=visitor.session) as events:
            assert (await events.json())["events"][-1]["reason"] == "x drained by page (token first-admin): fan"


async def test_no_other_page_may_act_with_it(ours: Secured) -> None:
    async with visiting(ours) as visitor:
        await visitor.enter(ours.token(Role.ADMIN))
        port = visitor.url.rpartition(":")[2]
        for others in (
            {},
            {"Origin": "null"},
            {"Origin": visitor.url.replace("https:", "http:")},
            {"Origin": "https://evil.example"},
            {"Origin": "https://127.0.0.1:1"},
            {"Origin": f"https://evil.example:{port}", "Host": f"evil.example:{port}"},
            {"Origin": visitor.url, "Sec-Fetch-Site": "same-site"},
            {"Origin": "https://["},
        ):
            status, answer = await visitor.post(DRAIN, REASON, **visitor.session, **others)
            assert (status, answer["error"] in {"foreign", "foreign_name"}) == (403, True), others
        assert await visitor.get("/v1/session", **visitor.session, **visitor.origin) == 403


async def test_a_page_makes_no_links(ours: Secured) -> None:
    async with visiting(ours) as visitor:
        await visitor.enter(ours.token(Role.ADMIN))
        status, answer = await visitor.post("/v1/page/link", {}, **visitor.session, **visitor.origin)
        assert (status, answer["error"]) == (403, "foreign")
        status, _ = await visitor.post("/v1/page/link", {}, Authorization=f"Bearer {ours.token().text}")
        assert status == 403, "who may not see makes no link either"


async def test_a_session_outlives_a_restart_but_not_another_key(ours: Secured, tmp_path: Path) -> None:
    async with visiting(ours) as visitor:
        await visitor.enter(ours.token(Role.ADMIN))
        session = visitor.session
    restarted = secured(tmp_path)
    async with visiting(restarted) as visitor:
        assert await visitor.get("/v1/jobs", **session) == 200
        for name in (KEY, CERTIFICATE):
            (tmp_path / "state" / FOLDER / name).unlink()
        restarted.security.reload()
        assert await visitor.get("/v1/jobs", **session) == 401


@pytest.mark.parametrize("end", ["time", "key", "token"])
async def test_an_open_page_ends_with_its_session(ours: Secured, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(revocation, "POLL_EVERY_S", 0.01)
    moment = 1_000.0
    gatekeeper = ours.security.gatekeeper
    gatekeeper.browsers = BrowserSessions(b"key", lambda: moment)
    async with visiting(ours) as visitor:
        await visitor.enter(ours.token(Role.ADMIN))
        async with visitor.client.get(f"{visitor.url}/v1/stream", headers=visitor.session) as stream:
            assert await stream.content.readline()
            if end == "time":
                moment += SESSION_S + 1
            elif end == "key":
                gatekeeper.browsers = BrowserSessions(b"another key", lambda: moment)
            else:
                ours.store.revoke("first-admin")
            async with asyncio.timeout(TIMEOUT_S):
                with suppress(ClientPayloadError):
                    while await stream.content.readany():
                        pass


async def test_a_session_that_is_over_worries_nobody(ours: Secured, caplog: pytest.LogCaptureFixture) -> None:
    async with visiting(ours) as visitor:
        await visitor.enter(ours.add("r", Role.READ))
        ours.store.revoke("r")
        ours.security.token_store.try_refresh()
        with caplog.at_level(logging.INFO):
            assert await visitor.get("/v1/stream", **visitor.session) == 401
    levels = [record.levelname for record in caplog.records if "session of this browser is over" in record.message]
    assert levels == ["INFO"]


async def test_who_guesses_links_is_slowed_down(ours: Secured) -> None:
    async with visiting(ours) as visitor:
        for _ in range(FAILURES_MAX):
            assert (await visitor.post("/v1/page/session", {"code": "x"}, **visitor.origin))[0] == 401
        assert (await visitor.post("/v1/page/session", {"code": "x"}, **visitor.origin))[0] == 429
        await visitor.enter(ours.token(Role.ADMIN))


async def test_in_the_clear_our_page_acts_on_this_host_alone(start: Start) -> None:
    async with start() as server, ClientSession() as client:
        visitor = Visitor(server.url, client)
        assert (await visitor.post("/v1/page/link", {}))[1]["code"] == ""
        assert (await visitor.post(DRAIN, REASON, **visitor.origin))[0] == 200
        assert (await visitor.post(DRAIN, REASON, Origin="http://evil.example"))[0] == 403


@pytest.mark.parametrize(
    ("peer", "here"),
    [("127.0.0.1", True), ("::ffff:127.0.0.1", True), ("::1", True), ("10.0.0.7", False), (None, False)],
)
async def test_what_this_host_is(peer: str | None, here: bool) -> None:
    assert is_on_this_host(peer) is here
