"""What a worker asks its node for, and what waits until that is there."""

import os

import pytest

from workerlib.contract.arena import Arena, ArenaSizes
from workerlib.contract.channel_messages import Reserve
from workerlib.keeping.arena_request import ArenaRequest
from workerlib.keeping.small_state import SmallSnapshot

pytestmark = pytest.mark.slow


def arena() -> Arena:
    file = os.memfd_create("arena")
    try:
        os.truncate(file, (sizes := ArenaSizes.at_least(900, 100)).total)
        return Arena.create(file, sizes)
    finally:
        os.close(file)


def taken(step: int) -> SmallSnapshot:
    return SmallSnapshot({}, {}, str(step).encode())


def test_while_memory_is_awaited_the_last_step_waits_for_it() -> None:
    asked: list[Reserve] = []
    memory = ArenaRequest(asked.append)
    for step in range(3):
        memory.want(800, 100, step, taken(step))
    assert [(request.generation, request.small) for request in asked] == [(900, 100)]
    waiting = memory.receive(arena())
    assert waiting is not None
    assert (waiting.step, waiting.state) == (2, taken(2))
    memory.want(800, 100, 3, taken(3))
    assert len(asked) == 1
    assert memory.receive(arena()) is None


def test_a_state_that_has_outgrown_its_memory_gets_room_to_grow_on() -> None:
    """Otherwise a history of steps would be larger than its memory most of the time, and no step could be saved."""
    asked: list[Reserve] = []
    memory = ArenaRequest(asked.append)
    memory.want(800, 100, 0, taken(0))
    memory.receive(arena())
    memory.want(100_000, 100, 1, taken(1))
    assert [request.generation for request in asked] == [900, 150_000]
