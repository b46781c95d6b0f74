"""Which coordinator is tried next, as nodes and operators' commands decide it."""

import socket

import pytest

from coordinatord.protocol.ip_addresses import Endpoint
from nodeclient.access.contact_points import (
    ADDRESSES_MAX,
    SUSPECT_S,
    ContactPoint,
    ContactPoints,
    addresses_of,
    leader_in,
)
from nodeclient.config.flag_values import endpoints

H1, H2, H3 = endpoints("h1,h2,h3")


def test_those_that_do_not_serve_are_tried_in_turn() -> None:
    contacts = ContactPoints([H1, H2])
    assert not contacts.is_only_one
    seen = []
    for _ in range(4):
        seen.append(contacts.current.coordinator)
        assert not contacts.record_attempt(0.0, served=False)
    assert seen == [H1, H2, H1, H2]


def test_one_that_has_served_is_asked_again_unless_it_fell_silent() -> None:
    contacts = ContactPoints([H1, H2])
    contacts.record_attempt(0.0, served=True)
    assert contacts.current == ContactPoint(H1)
    contacts.record_attempt(0.0, served=True, silent=True)
    assert contacts.current == ContactPoint(H2)


def test_a_single_one_is_asked_for_ever() -> None:
    contacts = ContactPoints([H1])
    for served, silent in ((False, False), (True, True), (True, False)):
        contacts.record_attempt(0.0, served=served, silent=silent)
        assert contacts.current == ContactPoint(H1)
        assert not contacts.is_suspect
    assert contacts.is_only_one


def test_the_leader_that_a_standby_names_is_tried_at_once_and_kept() -> None:
    contacts = ContactPoints([H1, H2])
    assert contacts.record_attempt(0.0, served=False, leader=H3)
    assert contacts.current == ContactPoint(H3)
    assert not contacts.record_attempt(0.0, served=True)
    assert contacts.current == ContactPoint(H3)


@pytest.mark.parametrize("has_served", [True, False])
def test_when_such_a_leader_is_gone_the_one_that_stood_by_is_asked_first_if_the_leader_has_served(
    has_served: bool,
) -> None:
    contacts = ContactPoints([H1, H2, H3])
    contacts.record_attempt(0.0, served=False, addresses=("10.0.0.1",))
    assert contacts.record_attempt(0.0, served=False, leader=H1)
    if has_served:
        contacts.record_attempt(0.0, served=True)
    assert not contacts.record_attempt(0.0, served=False)
    assert contacts.current == ContactPoint(H2 if has_served else H3)


def test_a_leader_that_fell_silent_is_doubted_for_a_moment() -> None:
    contacts = ContactPoints([H1, H2])
    contacts.record_attempt(10.0, served=True, silent=True)
    tried = []
    for now in (10.1, 11.1):
        tried.append((contacts.current, contacts.is_suspect))
        assert contacts.record_attempt(now, served=False, leader=H1), "it may go on"
        tried.append((contacts.current, contacts.is_suspect))
        assert not contacts.record_attempt(now + 1.0, served=False, silent=True)
    assert tried == [(ContactPoint(H2), False), (ContactPoint(H1), True)] * 2
    assert contacts.current == ContactPoint(H2)
    contacts.record_attempt(12.1 + SUSPECT_S, served=False, leader=H1)
    assert (contacts.current, contacts.is_suspect) == (ContactPoint(H1), False)


def test_when_a_named_leader_does_not_answer_the_standby_is_asked_again() -> None:
    contacts = ContactPoints([H2, H1, H3])
    assert contacts.record_attempt(10.0, served=False, leader=H1)
    assert not contacts.record_attempt(15.0, served=False, silent=True)
    assert contacts.current == ContactPoint(H2)


def test_one_that_serves_again_is_followed_again() -> None:
    contacts = ContactPoints([H1, H2])
    contacts.record_attempt(10.0, served=False, silent=True)
    contacts.record_attempt(10.1, served=False)
    contacts.record_attempt(10.2, served=True)
    contacts.record_attempt(10.3, served=False)
    assert contacts.current == ContactPoint(H2)
    assert contacts.record_attempt(10.4, served=False, leader=H1)


def test_two_that_name_each_other_are_not_followed_round_and_round() -> None:
    contacts = ContactPoints([H1, H2])
    at_once = []
    for _ in range(9):
        other = H2 if contacts.current.coordinator == H1 else H1
        at_once.append(contacts.record_attempt(0.0, served=False, leader=other))
    assert at_once == [True, False, True, False, True, False, True, False, True]


def test_of_a_name_each_address_is_tried_and_then_the_name_again() -> None:
    contacts = ContactPoints([H1])
    seen = []
    for _ in range(4):
        seen.append(contacts.current)
        contacts.record_attempt(
            0.0, served=False, addresses=("10.0.0.1", "10.0.0.2") if contacts.current.address is None else ()
        )
    assert seen == [ContactPoint(H1), ContactPoint(H1, "10.0.0.1"), ContactPoint(H1, "10.0.0.2"), ContactPoint(H1)]
    assert list(map(str, seen[:2])) == ["h1:29400", "h1:29400 (10.0.0.1)"]


def test_a_standby_at_one_address_keeps_no_node_from_the_other_addresses() -> None:
    """It may name a leader that answers and does not serve."""
    contacts = ContactPoints([H1])
    contacts.record_attempt(0.0, served=False, addresses=("10.0.0.1", "10.0.0.2"))
    assert contacts.record_attempt(0.0, served=False, leader=H2)
    assert contacts.current == ContactPoint(H2)
    contacts.record_attempt(0.0, served=False)
    assert contacts.current == ContactPoint(H1, "10.0.0.2")


def test_no_more_than_a_few_addresses_are_tried() -> None:
    contacts = ContactPoints([H1, H2])
    contacts.record_attempt(0.0, served=False, addresses=[f"10.0.0.{number}" for number in range(100)])
    tried = 0
    while contacts.current.coordinator == H1:
        tried += 1
        contacts.record_attempt(0.0, served=False)
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
