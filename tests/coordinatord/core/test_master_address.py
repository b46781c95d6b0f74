"""Which address of rank 0's node the others are given."""

import pytest

from coordinatord.core.rounds.queries.master_address import is_loopback, master_address, plain_address
from coordinatord.core.rounds.state.member import Member
from tests.support.builders import a_member


def near(node: str = "near", **offer: str) -> Member:
    """Return a node on the coordinator's own host."""
    return a_member(node, peer="127.0.0.1", local="127.0.0.1", **({"host_id": "coordinator"} | offer))


def far(node: str = "far", **offer: str) -> Member:
    """Return a node elsewhere, which reaches the coordinator at 10.0.0.9."""
    return a_member(node, peer="10.0.0.2", local="10.0.0.9", **offer)


def test_what_the_user_advertises_goes_before_all_else() -> None:
    master = far(advertise_address="ib0.example")
    assert master_address(master, [master, near()]) == "ib0.example"
    assert master_address(master, [master]) == "ib0.example"


@pytest.mark.parametrize("advertised", ["127.0.1.1", "::1"])
def test_a_loopback_address_is_advertised_to_the_same_host_alone(advertised: str) -> None:
    master = far(advertise_address=advertised)
    beside = far("beside", host_id=master.offer.host_id)
    assert master_address(master, [master, beside]) == advertised
    assert master_address(master, [master, near()]) == "10.0.0.2"


def test_nodes_that_share_a_host_meet_on_loopback() -> None:
    master, other = far(host_id="one"), far("other", host_id="one")
    assert master_address(master, [master, other]) == "127.0.0.1"


def test_a_node_alone_uses_loopback() -> None:
    master = far()
    assert master_address(master, [master]) == "127.0.0.1"


def test_a_far_master_is_reached_where_it_came_from() -> None:
    master = far()
    assert master_address(master, [master, near()]) == "10.0.0.2"


def test_behind_a_proxy_a_master_is_reached_where_it_says() -> None:
    master, other = far(host_id="one", routable_address="192.168.7.7"), far("other", host_id="two")
    assert master_address(master, [master, other]) == "192.168.7.7"
    silent = far("silent", host_id="three")
    assert master_address(silent, [silent, other]) == "10.0.0.2"


def test_a_master_beside_the_coordinator_is_reached_where_others_reached_the_coordinator() -> None:
    master = near(routable_address="192.168.7.7")
    assert master_address(master, [master, near("near-2"), far()]) == "10.0.0.9"


def test_a_masters_own_guess_serves_where_nobody_came_from_outside() -> None:
    master = near(routable_address="192.168.7.7")
    elsewhere = near("in-a-container", host_id="container")
    assert master_address(master, [master, elsewhere]) == "192.168.7.7"


def test_without_even_a_guess_it_is_where_the_master_came_from() -> None:
    master = near()
    assert master_address(master, [master, near("in-a-container", host_id="container")]) == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("10.0.0.1", False), ("localhost", False), ("", False)],
)
def test_loopback_is_known_by_address_and_never_by_name(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.parametrize(
    ("seen", "written"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("fe80::1%eth0", "fe80::1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("unknown", "unknown"),
    ],
)
def test_an_address_is_written_plainly(seen: str, written: str) -> None:
    assert plain_address(seen) == written
