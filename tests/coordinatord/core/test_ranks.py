"""Who gets which rank."""

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinatord.core.rounds.values.ranks import Seat, assign, natural_key, order


def a_seat(
    node: str, host: str = "", topology: str = "", workers: int = 1, role: str = "default", wish: int | None = None
) -> Seat:
    return Seat(node, host or node, topology, workers, role, wish)


def last_round(*nodes: str, workers: int = 1) -> dict[str, int]:
    """Build a last round of these nodes in their order, all with the same number of workers."""
    return dict.fromkeys(nodes, workers)


def names(seats: list[Seat]) -> list[str]:
    return [seat.node for seat in seats]


SEATS = st.lists(
    st.builds(
        Seat,
        node=st.text("ab019-", min_size=1, max_size=5),
        host=st.text("ab019-", min_size=1, max_size=5),
        topology=st.sampled_from(["", "rack1", "rack2", "rack10"]),
        workers=st.integers(1, 8),
        role=st.sampled_from(["trainer", "loader"]),
        wish=st.none(),
    ),
    unique_by=lambda seat: seat.node,
    min_size=1,
    max_size=12,
)


@given(SEATS)
def test_each_rank_is_given_once_from_zero_upward(seats: list[Seat]) -> None:
    ranks = assign(seats)
    given_ranks = [rank for part in ranks for rank in range(part.first_rank, part.first_rank + part.workers)]
    assert given_ranks == list(range(sum(seat.workers for seat in seats)))
    assert [part.group_rank for part in ranks] == list(range(len(seats)))


@given(SEATS)
def test_each_role_has_its_own_ranks_from_zero_upward(seats: list[Seat]) -> None:
    ranks = assign(seats)
    for role in {seat.role for seat in seats}:
        parts = [part for part, seat in zip(ranks, seats, strict=True) if seat.role == role]
        size = sum(part.workers for part in parts)
        assert {part.role_world_size for part in parts} == {size}
        role_ranks = [n for part in parts for n in range(part.first_role_rank, part.first_role_rank + part.workers)]
        assert role_ranks == list(range(size))


@given(SEATS, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_who_is_named_first(seats: list[Seat], chance: random.Random) -> None:
    shuffled = seats.copy()
    chance.shuffle(shuffled)
    previous = {seat.node: seat.workers for seat in seats[::2]} | {"gone": 2}
    assert order(seats, previous) == order(shuffled, previous)


@given(SEATS, st.data())
def test_survivors_stay_in_their_old_order(seats: list[Seat], data: st.DataObject) -> None:
    nodes = names(seats)
    previous = last_round(*data.draw(st.permutations([*nodes[: len(nodes) // 2], "gone", "lost"])))
    ordered = names(order(seats, previous))
    assert [node for node in ordered if node in previous] == [node for node in previous if node in nodes]
    assert sorted(ordered) == sorted(nodes)


@given(SEATS)
def test_rank_0_stays_where_it_was_if_its_node_lives(seats: list[Seat]) -> None:
    last = max(seats, key=lambda seat: (natural_key(seat.topology), natural_key(seat.host)))
    assert order(seats, last_round(last.node))[0] == last


# Places of nodes that are gone


def sizes(seats: list[Seat]) -> dict[str, int]:
    return {seat.node: seat.workers for seat in seats}


@given(SEATS, st.data())
def test_where_as_many_come_as_are_gone_nobody_else_moves(before: list[Seat], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(names(before))))
    now = [replace(seat, node=f"new {seat.node}") if seat.node in gone else seat for seat in before]
    old = {part.node: (part.group_rank, part.first_rank) for part in assign(before)}
    new = {part.node: (part.group_rank, part.first_rank) for part in assign(order(now, sizes(before)))}
    assert {node: place for node, place in new.items() if node in old} == {
        node: place for node, place in old.items() if node not in gone
    }
    assert sorted(new.values()) == sorted(old.values())


def test_more_spares_than_places_follow_at_the_end() -> None:
    seats = [a_seat(name) for name in ("a", "c", "x", "y", "z")]
    assert names(order(seats, last_round("a", "b", "c"))) == ["a", "x", "c", "y", "z"]


def test_of_two_places_and_one_spare_the_first_is_filled_and_the_other_closed_up() -> None:
    seats = [a_seat(name) for name in ("a", "c", "e", "z")]
    assert names(order(seats, last_round("a", "b", "c", "d", "e"))) == ["a", "z", "c", "e"]


def test_spares_fill_places_by_topology() -> None:
    seats = [a_seat("a", topology="rack2"), a_seat("b", topology="rack1"), a_seat("n")]
    assert names(order(seats, last_round("x", "n", "y"))) == ["b", "n", "a"]


def test_a_spare_takes_the_place_of_a_node_with_as_many_workers() -> None:
    seats = [a_seat("a", workers=2), a_seat("b", workers=8), a_seat("n", workers=4)]
    assert names(order(seats, {"x": 8, "n": 4, "y": 2})) == ["b", "n", "a"]


def test_a_spare_with_another_number_of_workers_takes_a_place_that_is_left() -> None:
    seats = [a_seat("a", workers=2), a_seat("b", workers=4), a_seat("n", workers=4)]
    assert names(order(seats, {"x": 8, "n": 4, "y": 4})) == ["a", "n", "b"]


def test_a_spare_that_wishes_for_it_gets_a_place_that_is_empty() -> None:
    seats = [a_seat("a", wish=2), a_seat("b", wish=0), a_seat("n")]
    assert names(order(seats, last_round("x", "n", "y"))) == ["b", "n", "a"]
    assert names(order([a_seat("a", wish=2), a_seat("b"), a_seat("n")], last_round("x", "n", "y"))) == ["b", "n", "a"]


# New nodes


def test_numbers_in_host_names_count_as_numbers() -> None:
    seats = [a_seat(name) for name in ("node10", "node2", "node1", "node2b", "node")]
    assert [seat.node for seat in order(seats, {})] == ["node", "node1", "node2", "node2b", "node10"]


def test_the_topology_comes_before_the_host() -> None:
    seats = [a_seat("a", topology="rack10"), a_seat("b", topology="rack2"), a_seat("c"), a_seat("d", topology="rack2")]
    assert [seat.node for seat in order(seats, {})] == ["c", "b", "d", "a"]


def test_nodes_of_one_host_are_told_apart_by_their_ids() -> None:
    seats = [a_seat("w-10", host="host"), a_seat("w-9", host="host")]
    assert [seat.node for seat in order(seats, {})] == ["w-9", "w-10"]


def test_digits_of_other_scripts_are_letters_and_no_number_is_too_long() -> None:
    names = ["٣", "²", "1" * 253, "01", "1"]
    assert [seat.node for seat in order([a_seat(name) for name in names], {})][:2] == ["01", "1"]


def test_nodes_may_bring_different_numbers_of_workers_and_roles() -> None:
    seats = [a_seat("a", workers=2), a_seat("b", workers=1, role="loader"), a_seat("c", workers=4)]
    parts = assign(seats)
    assert [(part.first_rank, part.workers) for part in parts] == [(0, 2), (2, 1), (3, 4)]
    assert [(part.first_role_rank, part.role_world_size) for part in parts] == [(0, 6), (0, 1), (2, 6)]


# Wishes


def wishers(*wishes: int | None) -> list[Seat]:
    return [a_seat(f"n{place}", wish=wish) for place, wish in enumerate(wishes)]


def test_wishes_for_all_group_ranks_are_honoured() -> None:
    assert [seat.wish for seat in order(wishers(2, 0, 3, 1), {})] == [0, 1, 2, 3]


def test_a_single_wish_is_honoured_among_nodes_that_have_none() -> None:
    assert [seat.node for seat in order(wishers(None, None, 0, None), {})] == ["n2", "n0", "n1", "n3"]
    assert [seat.node for seat in order(wishers(2, None, None, None), {})] == ["n1", "n2", "n0", "n3"]


def test_of_nodes_with_the_same_wish_the_one_that_was_there_before_gets_it() -> None:
    assert [seat.node for seat in order(wishers(0, 0), last_round("n1", "n0"))] == ["n1", "n0"]


def test_a_node_that_comes_back_does_not_take_its_rank_from_one_that_lives() -> None:
    assert [seat.node for seat in order(wishers(0, 1, 2), last_round("n1", "n2"))] == ["n1", "n2", "n0"]


def test_of_the_newcomers_the_one_that_wishes_for_it_gets_the_next_rank() -> None:
    assert [seat.node for seat in order(wishers(None, None, 1, None), last_round("n3"))] == ["n3", "n2", "n0", "n1"]


def test_nodes_with_wishes_keep_their_order_when_one_of_them_is_gone() -> None:
    assert names(order(wishers(1, 2, 3), last_round("gone", "n0", "n1", "n2"))) == ["n0", "n1", "n2"]


def test_a_wish_beyond_the_last_group_rank_leads_to_the_last_one() -> None:
    assert [seat.node for seat in order(wishers(7, None, None), {})] == ["n1", "n2", "n0"]


@given(st.lists(st.none() | st.integers(0, 6), min_size=1, max_size=6))
def test_whatever_is_wished_for_every_node_gets_one_rank(wishes: list[int | None]) -> None:
    seats = wishers(*wishes)
    assert sorted(seat.node for seat in order(seats, {})) == sorted(seat.node for seat in seats)
