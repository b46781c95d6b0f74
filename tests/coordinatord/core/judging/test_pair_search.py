"""A search in pairs names the nodes that are bad, and no others."""

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.core.judging.pair_search import TURNS_MAX, NodeVerdict, PairSearch
from coordinatord.protocol.pair_messages import PairResult

GFLOPS, MB_S = 50.0, 1000.0

FAULTS = {
    NodeVerdict.SLOW: "computes slowly",
    NodeVerdict.WRONG: "computes wrong products",
    NodeVerdict.BAD_LINK: "has a slow link",
    NodeVerdict.NO_ANSWER: "is silent",
}


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def measured(
    node: str, partner: str, faults: Mapping[str, NodeVerdict], broken: Collection[frozenset[str]] = ()
) -> PairResult:
    """Return what a node measures: nothing disturbs it but the faults of the two and of their link."""
    fault, other = faults.get(node), faults.get(partner)
    gflops = GFLOPS / 5 if fault is NodeVerdict.SLOW else GFLOPS
    mb_s = None if other is NodeVerdict.NO_ANSWER or {node, partner} in broken else MB_S
    if mb_s is not None and NodeVerdict.BAD_LINK in {fault, other}:
        mb_s = MB_S / 5
    return PairResult(1, gflops, mb_s, fault is NodeVerdict.WRONG)


def searched(
    nodes: Collection[str], faults: Mapping[str, NodeVerdict], broken: Collection[frozenset[str]] = ()
) -> PairSearch:
    search = PairSearch({node: f"host of {node}" for node in nodes})
    met: set[frozenset[str]] = set()
    while search.pairs:
        tested = [node for pair in search.pairs for node in pair]
        assert len(tested) == len(set(tested)), "no node is in two tests of a turn"
        assert met.isdisjoint(map(frozenset, search.pairs)), "no pair is tested twice"
        met |= set(map(frozenset, search.pairs))
        results = {
            node: measured(node, partner, faults, broken)
            for pair in search.pairs
            for node, partner in (pair, pair[::-1])
            if faults.get(node) is not NodeVerdict.NO_ANSWER
        }
        search.end_turn(results)
    return search


def verdicts(search: PairSearch) -> dict[str, NodeVerdict]:
    return {node: finding.verdict for node, finding in search.findings.items()}


@pytest.mark.parametrize("fault", FAULTS, ids=FAULTS.get)
@pytest.mark.parametrize("count", [4, 5, 15, 16])
def test_one_bad_node_is_named_within_three_turns_and_no_other(count: int, fault: NodeVerdict) -> None:
    for bad in names(count):
        search = searched(names(count), {bad: fault})
        assert verdicts(search) == dict.fromkeys(names(count), NodeVerdict.GOOD) | {bad: fault}
        assert search.turn <= TURNS_MAX + 1


@pytest.mark.parametrize("count", range(2, 18))
def test_good_nodes_are_cleared_in_one_turn_or_two_if_their_number_is_odd(count: int) -> None:
    search = searched(names(count), {})
    assert set(verdicts(search).values()) == {NodeVerdict.GOOD}
    assert search.turn == 2 + count % 2


@given(count=st.integers(2, 20), data=st.data())
def test_a_good_node_is_never_named_whatever_others_do(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    faults = data.draw(st.dictionaries(st.sampled_from(nodes), st.sampled_from([*FAULTS])))
    found = verdicts(searched(nodes, faults))
    assert [node for node in nodes if node not in faults and found[node].is_fault] == []


@given(quarter=st.integers(1, 5), data=st.data())
def test_as_many_as_a_quarter_of_the_nodes_are_all_named(quarter: int, data: st.DataObject) -> None:
    nodes = names(4 * quarter)
    fault = st.sampled_from([fault for fault in FAULTS if fault.is_fault])
    faults = data.draw(st.dictionaries(st.sampled_from(nodes), fault, max_size=quarter))
    assert verdicts(searched(nodes, faults)) == dict.fromkeys(nodes, NodeVerdict.GOOD) | faults


def test_of_three_nodes_the_one_whose_links_are_broken_is_named() -> None:
    for bad in "abc":
        search = searched("abc", {}, [frozenset({bad, other}) for other in "abc" if other != bad])
        assert verdicts(search) == dict.fromkeys("abc", NodeVerdict.GOOD) | {bad: NodeVerdict.BAD_LINK}


def test_of_two_nodes_nobody_can_tell_which_one_has_the_bad_link() -> None:
    search = searched(["a", "b"], {}, [frozenset("ab")])
    assert verdicts(search) == dict.fromkeys("ab", NodeVerdict.UNTOLD)


def test_a_bad_link_between_two_good_nodes_is_the_fault_of_neither() -> None:
    search = searched("abcd", {}, [frozenset("ac")])
    assert verdicts(search) == dict.fromkeys("abcd", NodeVerdict.GOOD)
    assert search.bad_links == (("a", "c"),)


def test_a_node_that_was_slow_once_was_only_disturbed() -> None:
    search = PairSearch(dict.fromkeys("abcd", "h"))
    search.end_turn({node: PairResult(1, 5.0 if node == "a" else GFLOPS, MB_S) for node in "abcd"})
    assert search.pairs == (("a", "b"),)
    search.end_turn({node: PairResult(2, GFLOPS, MB_S) for node in "ab"})
    assert verdicts(search) == dict.fromkeys("abcd", NodeVerdict.GOOD)


def test_a_node_with_one_slow_result_cannot_be_told_and_the_text_says_that_it_was_slow() -> None:
    finding = searched("ab", {"b": NodeVerdict.SLOW}).findings["b"]
    assert finding.verdict is NodeVerdict.UNTOLD
    assert finding.text == "computes 10 GFLOP/s, and 50 are usual, but it has only one result"


def test_a_link_through_the_network_is_not_compared_with_one_within_a_host() -> None:
    search = PairSearch({"a": "h1", "b": "h2", "c": "h3", "d": "h1", "e": "h2", "f": "h4"})
    near = {"a", "d", "b", "e"}
    search.end_turn({node: PairResult(1, GFLOPS, 10 * MB_S if node in near else MB_S) for node in "abcdef"})
    assert set(verdicts(search).values()) == {NodeVerdict.GOOD}


def test_a_finding_has_the_figures_and_what_it_rests_on() -> None:
    slow = searched("abcd", {"a": NodeVerdict.SLOW}).findings["a"]
    assert (slow.gflops, slow.mb_s) == (10.0, 1000.0)
    assert slow.text == "computes 10 GFLOP/s, and 50 are usual"
    link = searched("abcd", {"a": NodeVerdict.BAD_LINK}).findings["a"]
    assert link.text == "has a bad link with b and c: 200 MB/s at best"
    search = PairSearch(dict.fromkeys("ab", "h"))
    search.end_turn({"a": PairResult(1, None, None, text="no torch")})
    assert {node: finding.text for node, finding in search.findings.items()} == {
        "a": "gave no answer: no torch",
        "b": "gave no answer",
    }


def test_a_gpu_is_compared_with_those_of_its_kind_and_a_host_that_has_lost_it_with_all() -> None:
    speeds = {"a": ("H100", 300.0), "b": ("H100", 300.0), "c": ("A100", 100.0), "d": ("A100", 100.0), "e": ("", 1.0)}
    search = PairSearch({node: f"host of {node}" for node in speeds})
    while search.pairs:
        tested = [node for pair in search.pairs for node in pair]
        results = {node: PairResult(search.turn, speeds[node][1], MB_S, gpu=speeds[node][0]) for node in tested}
        search.end_turn(results)
    assert verdicts(search) == dict.fromkeys("abcd", NodeVerdict.GOOD) | {"e": NodeVerdict.SLOW}
