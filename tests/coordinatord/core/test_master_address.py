"""Which address of rank 0's node the others are given."""

import pytest

from coordinatord.core.rounds.queries.next_round import master_address
from coordinatord.core.rounds.state.member import Member
from tests.support.builders import a_member


def near(node: str = "near", **offer: str) -> Member:
    """Return a node on the coordinator's own host."""
    return a_member(node, peer="127.0.0.1", local="127.0.0.1", **({"host_id": "coordinator"} | offer))


def far(node: str = "far", **offer: str) -> Member:
    """Return a node elsewhere, which reaches the coordinator at 10.0.0.9."""
    return a_member(node, peer="10.0.0.2", local="10.0.0.9", **offer)


GUESSING = near(routable_address="192.168.7.7")
"""A node on the coordinator's own host, which says where others may reach it."""

CASES = {
    "as the user advertises, to nodes elsewhere": (far(advertise_address="ib0.example"), [near()], "ib0.example"),
    "as the user advertises, to nobody": (far(advertise_address="ib0.example"), [], "ib0.example"),
    "nodes that share a host meet on loopback": (far(host_id="one"), [far("other", host_id="one")], "127.0.0.1"),
    "a node alone uses loopback": (far(), [], "127.0.0.1"),
    "a far master where it came from": (far(), [near()], "10.0.0.2"),
    "behind a proxy where it says": (
        far(host_id="one", routable_address="192.168.7.7"),
        [far("other", host_id="two")],
        "192.168.7.7",
    ),
    "behind a proxy where it came from, if it says nothing": (
        far(host_id="three"),
        [far("other", host_id="one", routable_address="192.168.7.7")],
        "10.0.0.2",
    ),
    "beside the coordinator where others reached that": (GUESSING, [near("near-2"), far()], "10.0.0.9"),
    "where it guesses, if nobody came from outside": (GUESSING, [near("boxed", host_id="container")], "192.168.7.7"),
    "where it came from, without even a guess": (near(), [near("boxed", host_id="container")], "127.0.0.1"),
}
"""Rank 0's node, the others, and where they reach it."""


@pytest.mark.parametrize(("master", "others", "address"), CASES.values(), ids=CASES)
def test_the_master_is_reached(master: Member, others: list[Member], address: str) -> None:
    assert master_address(master, [master, *others]) == address


@pytest.mark.parametrize("advertised", ["127.0.1.1", "::1"])
def test_a_loopback_address_is_advertised_to_the_same_host_alone(advertised: str) -> None:
    master = far(advertise_address=advertised)
    beside = far("beside", host_id=master.offer.host_id)
    assert master_address(master, [master, beside]) == advertised
    assert master_address(master, [master, near()]) == "10.0.0.2"
