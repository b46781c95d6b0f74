"""Each node is copied to one of another failure domain, and all of them take their part of the copies."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from coordinatord.core.values.buddies import TAKES_MAX, Buddy, buddies


def nodes(*domains: str) -> list[Buddy]:
    """Return nodes of these domains: n0, n1 and so on."""
    return [Buddy(f"n{number}", domain) for number, domain in enumerate(domains)]


def test_a_lonely_host_has_no_copy_but_on_a_spare_of_another_domain() -> None:
    assert buddies(nodes("a", "a")) == {}
    assert buddies(nodes("a", "a"), [Buddy("s1", "a"), Buddy("s2", "b")]) == {"n0": "s2", "n1": "s2"}


def test_a_spare_changes_nothing_where_the_nodes_manage_without_it() -> None:
    trio = nodes("a", "b", "c")
    assert buddies(trio, [Buddy("s1", "d")]) == buddies(trio)


def test_the_rest_of_a_job_takes_what_one_large_domain_has_as_far_as_it_may() -> None:
    assert buddies(nodes("a", "a", "a", "b")) == {"n3": "n0", "n0": "n3", "n1": "n3", "n2": "n3"}
    pairs = buddies(nodes("b", *("a" for _ in range(20))))
    assert Counter(pairs.values())["n0"] == TAKES_MAX


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=30))
def test_copies_are_never_in_the_same_domain_and_evenly_spread(drawn: list[str]) -> None:
    drawn_nodes = nodes(*drawn)
    domain = {buddy.node: buddy.domain for buddy in drawn_nodes}
    pairs = buddies(drawn_nodes)
    assert all(domain[node] != domain[other] for node, other in pairs.items())
    largest = max(Counter(drawn).values())
    if 2 * largest <= len(drawn_nodes):
        assert sorted(pairs.values()) == sorted(domain), "each has a copy, and each takes one"
    elif largest < len(drawn_nodes):
        least = -(-largest // (len(drawn_nodes) - largest))
        assert max(Counter(pairs.values()).values()) <= min(least, TAKES_MAX)


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=30, unique=True), st.data())
def test_a_node_that_goes_changes_one_pair_where_each_is_its_own_domain(drawn: list[str], data: st.DataObject) -> None:
    drawn_nodes = nodes(*drawn)
    gone = data.draw(st.sampled_from(drawn_nodes))
    before, after = buddies(drawn_nodes), buddies([buddy for buddy in drawn_nodes if buddy != gone])
    assert sum(before[node] != other for node, other in after.items()) <= 1
