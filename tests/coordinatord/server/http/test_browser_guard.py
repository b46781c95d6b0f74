"""Browsers are let in by names that are ours, and programs by any; the log of pages that are refused is bounded."""

import socket
from itertools import product

import pytest
from aiohttp import ClientSession

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.messages import SESSION_PATH
from coordinatord.server.app import ListenAddress, serve
from coordinatord.server.http.browser_guard import OwnNames
from coordinatord.server.sessions.refusal_log import LINES_MAX
from coordinatord.store.database_store import MemoryStore
from tests.coordinatord.server.conftest import Start

CHROMIUM = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36", "Accept-Language": "en-US"}

PROGRAMS = ("curl/8.5.0", "Prometheus/3.1.0", "kube-probe/1.31", "Go-http-client/1.1", "Python/3.11 aiohttp/3.14")

NOBODYS = (
    "127.0.0.1",
    "10.0.0.7",
    "::1",
    "fd00::5",
    "localhost",
    "coordinatord",
    "coord.local",
    "coordinatord.training.svc.cluster.local",
    "ip-10-0-0-7.eu-west-1.compute.internal",
)


async def status_of(url: str, host: str, **headers: str) -> tuple[int, str]:
    """Send a request with another name than that in the URL; return the status and the text."""
    async with ClientSession() as client, client.get(url, headers={"Host": host, **headers}) as answer:
        return answer.status, await answer.text()


async def test_pages_that_ask_without_end_do_not_fill_the_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    page = f"http://{'evil' * 1_000}.example"
    async with start() as server, ClientSession(headers={"Origin": page}) as client:
        for _ in range(LINES_MAX + 5):
            async with client.get(f"{server.url}{SESSION_PATH}") as answer:
                assert answer.status == 403
    logged = [record for record in caplog.records if getattr(record, "event", "") == "page_refused"]
    assert len(logged) == LINES_MAX
    assert logged[-1].getMessage().endswith("more like this is not logged for now")
    assert all(len(str(record.__dict__["fields"])) < 1_000 for record in logged)


async def test_a_browser_reads_nothing_by_a_name_that_may_be_anybodys(start: Start) -> None:
    paths = ("/", "/v1/jobs", "/v1/events", "/v1/stream", "/metrics", "/healthz", "/nowhere")
    names = ("evil.example", "evil.example.", "127.0.0.1.evil.example", "local.evil.example")
    marks = ({"Accept-Language": ""}, {"Sec-Fetch-Site": "none"}, CHROMIUM)
    async with start() as server:
        asked = [*product(paths, names[:1], marks), *product(paths[:1], names, marks[:1])]
        for path, name, mark in asked:
            status, text = await status_of(f"{server.url}{path}", f"{name}:29400", **mark)
            assert (status, "does not know the name" in text) == (403, True)


async def test_programs_ask_by_any_name(start: Start) -> None:
    async with start() as server:
        for program in PROGRAMS:
            assert (await status_of(f"{server.url}/healthz", "coord.corp.example:80", **{"User-Agent": program}))[
                0
            ] == 200


async def test_a_browser_is_let_in_by_the_names_that_are_given() -> None:
    async with serve(ListenAddress("127.0.0.1", 0, names=["page.corp.example"]), Policy(), MemoryStore()) as server:
        assert (await status_of(server.url, "page.corp.example", **CHROMIUM))[0] == 200
        assert (await status_of(server.url, "other.corp.example", **CHROMIUM))[0] == 403


@pytest.mark.parametrize("name", NOBODYS)
def test_names_that_nobody_can_register_are_ours(name: str) -> None:
    assert OwnNames().has(name)


def test_a_name_with_a_dot_in_front_stands_for_all_below_it() -> None:
    names = OwnNames([".corp.example", "Page.Other.Example."])
    for name, ours in (
        ("a.corp.example", True),
        ("A.B.Corp.Example.", True),
        ("corp.example", False),
        ("evilcorp.example", False),
        ("page.other.example", True),
        ("a.page.other.example", False),
    ):
        assert names.has(name) is ours, name


def test_the_names_of_this_host_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu1.corp.example")
    assert OwnNames().has("GPU1.corp.example")
