"""Which of several coordinators answers an operator's request."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from coordinatord.protocol.api import AdminBody
from nodeclient.access.keyring import CLEAR
from nodeclient.config.flag_values import endpoints
from nodeclient.operate.client import Client
from nodeclient.operate.request_errors import LostError
from tests.support.canned_http import canned, hang_up, packed, stands_by

NOBODY_LEADS = packed({"error": "standby", "message": "it stands by, and nobody leads"}, 503)


@pytest.fixture
def nobody() -> Iterator[str]:
    """Yield an address where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_the_leader_that_a_standby_names_is_asked_and_comes_first_then() -> None:
    with canned(packed("yes")) as (leader, asked), canned(stands_by(leader)) as (standby, turned_away):
        client = Client(endpoints(standby), CLEAR)
        assert [client.get("/jobs") for _ in range(2)] == ["yes"] * 2
        assert client.where == leader
        assert (asked, turned_away) == (["GET /jobs"] * 2, ["GET /jobs"])


def test_a_command_is_carried_out_once_and_by_the_leader() -> None:
    with canned(packed("done")) as (leader, asked), canned(stands_by(leader)) as (standby, turned_away):
        assert Client(endpoints(standby), CLEAR).post("/jobs/mnist/stop", AdminBody("why")) == "done"
        assert asked == turned_away == ["POST /jobs/mnist/stop"]


def test_where_nobody_leads_the_next_one_is_asked() -> None:
    with canned(NOBODY_LEADS) as (standby, _), canned(packed("yes")) as (other, _):
        assert Client(endpoints(f"{standby},{other}"), CLEAR).get("/jobs") == "yes"
        with pytest.raises(LostError, match=f"{standby}: stands by, and nobody leads"):
            Client(endpoints(standby), CLEAR).get("/jobs")


def test_a_leader_that_is_gone_is_named_beside_whoever_named_it(nobody: str) -> None:
    with canned(stands_by(nobody)) as (standby, _):
        words = f"{standby}: stands by, and names {nobody} as the leader: Connection refused"
        with pytest.raises(LostError, match=words):
            Client(endpoints(standby), CLEAR).get("/jobs")


def test_two_that_name_each_other_are_asked_once_each() -> None:
    places: list[str] = []

    def name_the_other(handler: BaseHTTPRequestHandler) -> None:
        own = handler.headers["Host"]
        stands_by(next(place for place in places if place != own))(handler)

    with canned(name_the_other) as (first, asked_first), canned(name_the_other) as (second, asked_second):
        places += [first, second]
        with pytest.raises(LostError, match=f"{first}: stands by, and names {second} as the leader: stands by"):
            Client(endpoints(first), CLEAR).get("/jobs")
        assert (len(asked_first), len(asked_second)) == (1, 1)


def test_of_a_name_each_address_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with canned(packed("yes")) as (other, _):
        port = int(other.rpartition(":")[2])
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (2, 1)]
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, *rest, **more: found if host == "coord" else real(host, *rest, **more)
        )
        client = Client(endpoints(f"coord:{port}"), CLEAR)
        assert client.get("/jobs") == "yes"
        assert client.where == f"coord:{port}"


def test_one_that_hangs_up_is_followed_by_the_next_one() -> None:
    with canned(hang_up) as (first, _), canned(packed("yes")) as (second, _):
        assert Client(endpoints(f"{first},{second}"), CLEAR).get("/jobs") == "yes"
