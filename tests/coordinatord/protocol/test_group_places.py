"""Where a worker is in its groups comes back as it went, in a few bytes a group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinatord.protocol.group_places import GroupPlace, GroupStage, pack_places, place_of, unpack_places
from coordinatord.protocol.stack_messages import PLACES_BYTES_MAX, Collective, CollectiveState

WAITS = Collective("TENSOR_MODEL_PARALLEL_GROU 41@12", 42_806, CollectiveState.WAITS, "nccl:_all_gather_base")
DONE = CollectiveState.DONE


@pytest.mark.parametrize(
    ("collective", "place"),
    [
        (WAITS, GroupPlace("41@12.nccl", GroupStage.WAITS_FOR_ALL, 42_806)),
        (replace(WAITS, operation="nccl:broadcast"), GroupPlace("41@12.nccl", GroupStage.WAITS, 42_806)),
        (replace(WAITS, operation="nccl2:all_to_all"), GroupPlace("41@12.nccl2", GroupStage.WAITS, 42_806)),
        (replace(WAITS, state=DONE), GroupPlace("41@12.nccl", GroupStage.DONE, 42_806)),
        (replace(WAITS, operation="nccl:send to 8"), GroupPlace("41@12.nccl", GroupStage.SENDS, 8)),
        (replace(WAITS, operation="nccl:recv from 12"), GroupPlace("41@12.nccl", GroupStage.RECEIVES, 12)),
        (Collective("default_pg", 0, DONE), GroupPlace("default_pg.", GroupStage.DONE, 0)),
        (replace(WAITS, operation="nccl:recv 0<-3"), None),
        (replace(WAITS, state=CollectiveState.MOVES), None),
    ],
)
def test_a_place_is_made_of_what_a_worker_tells(collective: Collective, place: GroupPlace | None) -> None:
    assert place_of(collective) == place


def test_of_a_group_two_collectives_are_told_and_one_exchange() -> None:
    def in_group(operation: str, number: int) -> Collective:
        return replace(WAITS, operation=f"nccl:{operation}", number=number)

    told = ("broadcast", 1), ("broadcast", 2), ("all_reduce", 3), ("barrier", 4), ("recv from 5", 1), ("send to 6", 1)
    packed = pack_places([replace(WAITS, group="first 1"), *(in_group(*each) for each in told)])
    assert packed == b"41@12.nccl?1;41@12.nccl!3;41@12.nccl<5;"
    assert pack_places([in_group(*each) for each in told]) == b"41@12.nccl!3;41@12.nccl<5;", "the first is told apart"


NAMES = st.text(max_size=12) | st.sampled_from(["default_pg", "dp 3@1"])
COLLECTIVES = st.builds(
    Collective, NAMES, st.integers(0, 2**53), st.sampled_from(CollectiveState), st.text(max_size=20)
)


@given(st.lists(COLLECTIVES, max_size=40))
def test_whatever_workers_tell_the_places_keep_to_their_limit(collectives: list[Collective]) -> None:
    packed = pack_places(collectives)
    assert len(packed) <= PLACES_BYTES_MAX
    assert b"".join(f"{p.group}{p.stage}{p.number};".encode() for p in unpack_places(packed)) == packed


@given(st.binary(max_size=PLACES_BYTES_MAX))
def test_whatever_a_node_sends_is_read(packed: bytes) -> None:
    assert all(place.number >= 0 for place in unpack_places(packed))
