"""What a worker asks its node for, and what waits until that is there."""

import os
import threading

import pytest
import torch

from tests.support.kept_script import Script
from tests.support.programs import wait_until
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


def test_a_step_that_outgrows_its_memory_is_kept(script: Script) -> None:
    losses = {"sum": torch.zeros(3)}
    with script.runs({"losses": losses}) as (_, kept):
        for step in range(19):  # sizes are checked at powers of two in any case
            losses["sum"] += 1
            if step == 18:
                losses["all"] = torch.zeros(100_000)
            kept.step(step)
            wait_until("memory", lambda: not kept._saver.memory.awaited)
        assert script.saved(kept) == 18


def test_training_waits_for_memory_that_its_state_has_outgrown(script: Script) -> None:
    class GivingWhenAwaited(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            script.node.gives.set()
            return super().wait(timeout)

    losses = {"sum": torch.zeros(3)}
    with script.runs({"losses": losses}) as (_, kept):
        losses["sum"] += 1
        kept.step(0)
        script.await_memory(kept)
        script.node.gives.clear()
        kept._saver.memory.answered = GivingWhenAwaited()
        losses["all"] = torch.zeros(100_000)
        kept.step(1)
        is_awaited = kept._saver.memory.awaited
        script.node.gives.set()
        assert not is_awaited
