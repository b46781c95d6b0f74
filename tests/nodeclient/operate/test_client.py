"""Which of several coordinators answers an operator's request."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from coordinatord.protocol.http.api import AdminBody
from nodeclient.access.keyring import INSECURE_ACCESS, AccessSettings
from nodeclient.config.flag_values import endpoints
from nodeclient.operate import client
from nodeclient.operate.client import Client, LostError, RequestError
from tests.support.canned_http import Answer, canned, hang_up, packed, stands_by
from tests.support.secured import secured, serving

NOBODY_LEADS = packed({"error": "standby", "message": "this coordinator stands by, and nobody leads: no etcd"}, 503)


HEALTH = "GET /healthz"

LONG_S = 600.0
"""Longer than any test may take."""


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield an address where connections are taken and nothing is said, as by a process that is paused."""
    with socket.create_server(("127.0.0.1", 0)) as paused:
        yield f"127.0.0.1:{paused.getsockname()[1]}"


@pytest.fixture
def nobody() -> Iterator[str]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_the_leader_that_a_standby_names_is_asked_and_comes_first_then() -> None:
    with canned(packed("yes")) as (leader, asked), canned(stands_by(leader)) as (standby, turned_away):
        caller = Client(endpoints(standby), INSECURE_ACCESS)
        assert [caller.get("/jobs") for _ in range(2)] == ["yes"] * 2
        assert caller.where == leader
        assert [what for what in asked if what != HEALTH] == ["GET /jobs"] * 2
        assert turned_away == ["GET /jobs"]


def test_a_command_is_carried_out_once_and_by_the_leader() -> None:
    with canned(packed("done")) as (leader, asked), canned(stands_by(leader)) as (standby, turned_away):
        assert Client(endpoints(standby), INSECURE_ACCESS).post("/jobs/mnist/stop", AdminBody("why")) == "done"
        assert asked == turned_away == ["POST /jobs/mnist/stop"]


def test_where_nobody_leads_or_one_hangs_up_the_next_one_is_asked() -> None:
    with canned(NOBODY_LEADS) as (standby, _), canned(hang_up) as (gone, _), canned(packed("yes")) as (other, _):
        assert Client(endpoints(f"{standby},{gone},{other}"), INSECURE_ACCESS).get("/jobs") == "yes"
        with pytest.raises(LostError, match=f"^{standby} stands by, and nobody leads: no etcd$"):
            Client(endpoints(standby), INSECURE_ACCESS).get("/jobs")


def test_a_leader_that_is_gone_is_named_beside_whoever_named_it(nobody: str) -> None:
    with canned(stands_by(nobody)) as (standby, _):
        words = f"{standby}: stands by, and names {nobody} as the leader: Connection refused"
        with pytest.raises(LostError, match=words):
            Client(endpoints(standby), INSECURE_ACCESS).get("/jobs")


def test_two_that_name_each_other_are_asked_once_each() -> None:
    places: list[str] = []

    def name_the_other(handler: BaseHTTPRequestHandler) -> None:
        own = handler.headers["Host"]
        stands_by(next(place for place in places if place != own))(handler)

    with canned(name_the_other) as (first, asked_first), canned(name_the_other) as (second, asked_second):
        places += [first, second]
        with pytest.raises(LostError, match=f"{first}: stands by, and names {second} as the leader: stands by"):
            Client(endpoints(first), INSECURE_ACCESS).get("/jobs")
        assert (len(asked_first), len(asked_second)) == (1, 1)


def test_of_a_name_each_address_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with canned(packed("yes")) as (other, _):
        port = int(other.rpartition(":")[2])
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (2, 1)]
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, *rest, **more: found if host == "coord" else real(host, *rest, **more)
        )
        named = Client(endpoints(f"coord:{port}"), INSECURE_ACCESS)
        assert named.get("/jobs") == "yes"
        assert named.where == f"coord:{port}"


async def test_the_token_for_nodes_is_that_of_the_coordinator_that_answers(tmp_path: Path, nobody: str) -> None:
    ours = secured(tmp_path)
    async with serving(ours) as server:
        url = server.url.removeprefix("https://")

        async def token_of(home: Path) -> str:
            access = AccessSettings(config_home=str(home))
            return await asyncio.to_thread(Client(endpoints(f"{nobody},{url}"), access).node_token)

        assert await token_of(ours.home) == ours.token().text
        with pytest.raises(RequestError, match="wants a token"):
            await token_of(tmp_path / "nobody")


def _leads(answer: object) -> dict[str, Answer]:
    return {HEALTH: packed({}), "GET /jobs": packed(answer), "POST /jobs/mnist/stop": packed(answer)}


def test_one_that_takes_connections_and_is_silent_is_passed_over(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_WITHIN_S", LONG_S)
    monkeypatch.setattr(client, "ASK_NEXT_AFTER_S", 0.05)
    with canned(_leads("yes")) as (leader, asked):
        several = Client(endpoints(f"{silent},{leader}"), INSECURE_ACCESS)
        assert several.get("/jobs") == "yes"
        assert several.where == leader
        assert (
            Client(endpoints(f"{silent},{leader}"), INSECURE_ACCESS).post("/jobs/mnist/stop", AdminBody("why")) == "yes"
        )
        assert asked.count("POST /jobs/mnist/stop") == 1


def test_a_standby_that_names_a_silent_leader_is_asked_until_it_leads(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def lead_later(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        answer = packed("yes") if asked.count("/jobs") > 2 or handler.path == "/healthz" else stands_by(silent)
        answer(handler)

    monkeypatch.setattr(client, "ANSWER_WITHIN_S", LONG_S)
    monkeypatch.setattr(client, "TAKEOVER_WITHIN_S", LONG_S)
    monkeypatch.setattr(client, "ASK_NEXT_AFTER_S", 0.05)
    with canned(lead_later) as (standby, _):
        assert Client(endpoints(f"{silent},{standby}"), INSECURE_ACCESS).get("/jobs") == "yes"


def test_where_nobody_says_anything_each_is_named(silent: str, nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_WITHIN_S", 0.5)
    with pytest.raises(LostError, match=f"{silent}: it does not answer; {nobody}: "):
        Client(endpoints(f"{silent},{nobody}"), INSECURE_ACCESS).get("/jobs")


def test_a_stream_that_does_not_begin_is_given_up_as_soon_as_any_answer(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_WITHIN_S", 0.5)
    monkeypatch.setattr(client, "SILENT_S_MAX", LONG_S)
    with pytest.raises(LostError, match=f"{silent}: timed out"):
        next(Client(endpoints(silent), INSECURE_ACCESS).events("/v1/events", None))


def test_a_stream_that_has_begun_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def begin(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        over.wait()

    monkeypatch.setattr(client, "ANSWER_WITHIN_S", LONG_S)
    monkeypatch.setattr(client, "SILENT_S_MAX", 0.1)
    with canned(begin) as (leader, _):
        try:
            with pytest.raises(LostError, match=f"{leader}: timed out"):
                next(Client(endpoints(leader), INSECURE_ACCESS).events("/v1/events", None))
        finally:
            over.set()


def test_a_standby_whose_leader_stays_silent_is_named_with_it(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TAKEOVER_WITHIN_S", 0.0)
    monkeypatch.setattr(client, "ASK_NEXT_AFTER_S", 0.05)
    with canned({HEALTH: packed({}), "GET /jobs": stands_by(silent)}) as (standby, _):
        words = f"{standby}: stands by, and names {silent} as the leader, which does not answer"
        with pytest.raises(LostError, match=words):
            Client(endpoints(f"{silent},{standby}"), INSECURE_ACCESS).get("/jobs")
