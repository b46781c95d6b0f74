"""Which coordinator is tried next, as nodes and operators' commands decide it."""

from __future__ import annotations

import socket

import pytest

from nodeclient.access.turns import ADDRESSES_MAX, DOUBTED_S, Turn, Turns, addresses_of, leader_in
from nodeclient.config.flag_values import Endpoint, endpoints

H1, H2, H3 = endpoints("h1,h2,h3")


def test_those_that_do_not_serve_are_tried_in_turn() -> None:
    turns = Turns([H1, H2])
    assert not turns.alone
    seen = []
    for _ in range(4):
        seen.append(turns.turn.coordinator)
        assert not turns.note(0.0, served=False)
    assert seen == [H1, H2, H1, H2]


def test_one_that_has_served_is_asked_again_unless_it_fell_silent() -> None:
    turns = Turns([H1, H2])
    turns.note(0.0, served=True)
    assert turns.turn == Turn(H1)
    turns.note(0.0, served=True, silent=True)
    assert turns.turn == Turn(H2)


def test_a_single_one_is_asked_for_ever() -> None:
    turns = Turns([H1])
    for served, silent in ((False, False), (True, True), (True, False)):
        turns.note(0.0, served=served, silent=silent)
        assert turns.turn == Turn(H1)
    assert turns.alone


def test_the_leader_that_a_standby_names_is_tried_at_once_and_kept() -> None:
    turns = Turns([H1, H2])
    assert turns.note(0.0, served=False, leader=H3)
    assert turns.turn == Turn(H3)
    assert not turns.note(0.0, served=True)
    assert turns.turn == Turn(H3)


def test_when_such_a_leader_is_gone_the_one_that_stood_by_is_asked_first() -> None:
    turns = Turns([H1, H2, H3])
    turns.note(0.0, served=False)
    assert turns.note(0.0, served=False, leader=H1)
    turns.note(0.0, served=True)
    assert not turns.note(0.0, served=False)
    assert turns.turn == Turn(H2)


def test_when_such_a_leader_never_served_the_next_one_is_asked() -> None:
    turns = Turns([H1, H2])
    assert turns.note(0.0, served=False, leader=H3)
    assert not turns.note(0.0, served=False)
    assert turns.turn == Turn(H2)


def test_a_leader_that_fell_silent_is_doubted_for_a_moment() -> None:
    turns = Turns([H1, H2])
    turns.note(10.0, served=True, silent=True)
    tried = []
    for now in (10.1, 11.1):
        tried.append((turns.turn, turns.doubts))
        assert turns.note(now, served=False, leader=H1), "it may go on"
        tried.append((turns.turn, turns.doubts))
        assert not turns.note(now + 1.0, served=False, silent=True)
    assert tried == [(Turn(H2), False), (Turn(H1), True)] * 2
    assert turns.turn == Turn(H2)
    turns.note(12.1 + DOUBTED_S, served=False, leader=H1)
    assert (turns.turn, turns.doubts) == (Turn(H1), False)


def test_the_only_coordinator_is_not_doubted() -> None:
    turns = Turns([H1])
    turns.note(10.0, served=True, silent=True)
    assert not turns.doubts


def test_when_a_named_leader_does_not_answer_the_standby_is_asked_again() -> None:
    turns = Turns([H2, H1, H3])
    assert turns.note(10.0, served=False, leader=H1)
    assert not turns.note(15.0, served=False, silent=True)
    assert turns.turn == Turn(H2)


def test_one_that_serves_again_is_followed_again() -> None:
    turns = Turns([H1, H2])
    turns.note(10.0, served=False, silent=True)
    turns.note(10.1, served=False)
    turns.note(10.2, served=True)
    turns.note(10.3, served=False)
    assert turns.turn == Turn(H2)
    assert turns.note(10.4, served=False, leader=H1)


def test_two_that_name_each_other_are_not_followed_round_and_round() -> None:
    turns = Turns([H1, H2])
    at_once = []
    for _ in range(9):
        other = H2 if turns.turn.coordinator == H1 else H1
        at_once.append(turns.note(0.0, served=False, leader=other))
    assert at_once == [True, False, True, False, True, False, True, False, True]


def test_of_a_name_each_address_is_tried_and_then_the_name_again() -> None:
    turns = Turns([H1])
    seen = []
    for _ in range(4):
        seen.append(turns.turn)
        turns.note(0.0, served=False, addresses=("10.0.0.1", "10.0.0.2") if turns.turn.address is None else ())
    assert seen == [Turn(H1), Turn(H1, "10.0.0.1"), Turn(H1, "10.0.0.2"), Turn(H1)]
    assert list(map(str, seen[:2])) == ["h1:29400", "h1:29400 (10.0.0.1)"]


def test_a_name_with_one_address_is_asked_by_its_name() -> None:
    turns = Turns([H1, H2])
    turns.note(0.0, served=False, addresses=("10.0.0.1",))
    assert turns.turn == Turn(H2)


def test_no_more_than_a_few_addresses_are_tried() -> None:
    turns = Turns([H1, H2])
    turns.note(0.0, served=False, addresses=[f"10.0.0.{number}" for number in range(100)])
    tried = 0
    while turns.turn.coordinator == H1:
        tried += 1
        turns.note(0.0, served=False)
    assert tried == ADDRESSES_MAX


@pytest.mark.parametrize(
    ("location", "leader"),
    [
        ("https://h2:29400/v1/node", Endpoint("h2", 29400)),
        ("http://10.0.0.2:8080/", Endpoint("10.0.0.2", 8080)),
        ("https://[fd00::5]:29400/jobs?all=1", Endpoint("fd00::5", 29400)),
        ("https://h2/jobs", Endpoint("h2", 29400)),
        ("/jobs", None),
        ("", None),
        ("https://h2:port/", None),
        ("https://h2:99999/", None),
        ("https://[nonsense]/", None),
        ("https://h2,h3:29400/", None),
    ],
)
def test_the_leader_is_read_from_the_header(location: str, leader: Endpoint | None) -> None:
    assert leader_in(location) == leader


def test_addresses_are_those_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: int, **_: object) -> list[object]:
        if host != "coord":
            raise socket.gaierror
        return [(2, 1, 6, "", (address, port)) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert addresses_of(Endpoint("coord", 29400)) == ("10.0.0.1", "10.0.0.2")
    assert addresses_of(Endpoint("10.0.0.1", 29400)) == addresses_of(Endpoint("fd00::5", 29400)) == ()
    assert addresses_of(Endpoint("nowhere", 29400)) == ()
