"""Each node gets what its workers resume from out of its own memory where it can, and gets no more than it needs."""

from coordinatord.core.keeping.resume_plan import ResumePlan
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.protocol.kept_state import SOURCES_MAX, KeptParts, WantedParts
from tests.support.kept_state import kept_parts


def wanted(first: int, ranks: int = 1, *, big: bool = False, small: bool = False) -> WantedParts:
    return WantedParts(first, ranks, big, small)


def a_plan(shards: int, world_size: int, **held: KeptParts) -> ResumePlan:
    return ResumePlan(ResumePoint(1, 9, world_size, shards, 0), {node: (parts,) for node, parts in held.items()})


def alike(first: int, ranks: int, *, shards: int = 1, world_size: int = 4, **kinds: bool) -> KeptParts:
    return kept_parts(1, 9, range(first, first + ranks), shards=shards, world_size=world_size, **kinds)


def test_new_nodes_do_not_all_ask_the_same_one() -> None:
    plan = a_plan(1, 4, a=alike(0, 2), b=alike(2, 2))
    asked = []
    for first in (4, 6, 8, 10):
        found = plan.sources("new", range(first, first + 2), 12)
        assert found is not None
        asked += [node for node, parts in found.items() if any(part.big for part in parts)]
    assert set(asked) == {"a", "b"}


def test_new_nodes_ask_replicas_of_a_shard_in_turn() -> None:
    replicas = {f"n{node}": alike(2 * node, 2, shards=2, world_size=12) for node in range(4)}
    plan = a_plan(2, 12, **replicas, n4=alike(8, 4, shards=2, world_size=12, big=False, pending=True))
    for world_size in (12, 16):  # each rank has the shard that it had, or the state is divided anew
        asked = set[str]()
        for first in (8, 10):
            found = plan.sources("new", range(first, first + 2), world_size)
            assert found is not None
            asked |= {node for node, parts in found.items() if any(part.big for part in parts)}
        assert asked == {"n0", "n1"}


def test_a_node_asks_the_first_holders_if_those_of_its_turn_are_too_many() -> None:
    shards = SOURCES_MAX + 1
    copies = {f"n{rank}": alike(rank, 1, shards=shards, world_size=shards) for rank in range(1, shards)}
    plan = a_plan(shards, shards, everything=alike(0, shards, shards=shards, world_size=shards), **copies)
    assert (found := plan.sources("new", range(1, 2), 2)) is not None
    assert set(found) == {"everything"}


def test_a_pending_small_state_comes_with_a_committed_one() -> None:
    plan = a_plan(1, 2, a=alike(0, 1, world_size=2), b=alike(1, 1, world_size=2, big=False, small=False, pending=True))
    assert plan.sources("b", range(1, 2), 2) == {"a": (wanted(0, big=True, small=True),), "b": (wanted(1, small=True),)}


def test_with_as_many_ranks_as_before_each_gets_its_own_shard() -> None:
    plan = a_plan(4, 4, a=alike(0, 2, shards=4), b=alike(2, 2, shards=4))
    assert plan.sources("a", range(2), 4) == {"a": (wanted(0, 2, big=True, small=True),)}
    assert plan.sources("c", range(2, 4), 4) == {"b": (wanted(2, 2, big=True, small=True),)}


def test_a_shard_without_a_holder_is_no_source() -> None:
    plan = a_plan(4, 4, a=alike(0, 3, shards=4))
    assert plan.sources("a", range(2), 2) is None
    assert plan.sources("b", range(3, 4), 4) is None


def test_a_replica_has_the_shard_of_a_rank_whose_host_is_gone() -> None:
    plan = a_plan(2, 4, a=alike(0, 2, shards=2))
    assert (found := plan.sources("c", range(2, 4), 4)) is not None
    assert [(part.first_rank, part.ranks) for part in found["a"] if part.big] == [(0, 1), (1, 1)]


def test_what_is_spread_over_more_nodes_than_one_can_ask_is_not_to_be_had() -> None:
    nodes = SOURCES_MAX + 1
    held = {f"n{rank}": alike(rank, 1, shards=nodes, world_size=nodes) for rank in range(nodes)}
    plan = a_plan(nodes, nodes, **held)
    assert plan.sources("n0", range(1), nodes) is not None
    assert plan.sources("n0", range(1), 1) is None


def test_a_rank_is_not_given_a_shard_by_a_part_with_another_number_of_shards() -> None:
    plan = a_plan(2, 4, a=alike(0, 2, shards=2), b=alike(2, 2, shards=4))
    assert (found := plan.sources("c", range(2, 4), 4)) is not None
    assert [(part.first_rank, part.ranks) for part in found["a"] if part.big] == [(0, 2)]
