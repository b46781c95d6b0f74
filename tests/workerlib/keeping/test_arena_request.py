"""The memory that a worker requests for its state, what waits for it, and what is lent by a worker that has ended."""

import os
import resource
import threading
from pathlib import Path

import pytest
import torch

from tests.support.kept_script import Objects, Script, do_steps, network_and_optimizer, state_of
from tests.support.programs import TIMEOUT_S, wait_until
from workerlib.contract.arena import Arena, ArenaSizes
from workerlib.contract.channel_messages import NotSaved, Reserve
from workerlib.keeping.arena_request import ArenaRequest
from workerlib.keeping.keeper import StepKeeper
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


class GivingWhenAwaited(threading.Event):
    """The event of an answer for which the node waits until the worker does."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._gives = script.node.gives
        self._gives.clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Have the node answer, and wait for that, however busy the host is."""
        self._gives.set()
        return super().wait(TIMEOUT_S if timeout else timeout)


def test_training_waits_for_memory_that_its_state_has_outgrown(script: Script) -> None:
    losses = {"sum": torch.zeros(3)}
    with script.runs({"losses": losses}) as (_, kept):
        losses["sum"] += 1
        kept.step(0)
        script.await_memory(kept)
        kept._saver.memory.answered = GivingWhenAwaited(script)
        losses["all"] = torch.zeros(100_000)
        kept.step(1)
        is_awaited = kept._saver.memory.awaited
        script.node.gives.set()
        assert not is_awaited


def test_a_training_that_is_over_before_its_memory_has_come_waits_for_it(script: Script) -> None:
    with script.trains() as (model, optimizer, kept):
        wait_until("the first answer", lambda: not kept._saver.memory.awaited)
        kept._saver.memory.answered = GivingWhenAwaited(script)
        do_steps(kept, model, optimizer)
    assert script.node.choose().step == 2


FOR_ALL = ArenaSizes.at_least(100_000, 20_000)


def trained(script: Script, kept: StepKeeper, objects: Objects) -> str:
    """Do steps, save into lent memory, and return a digest of what is saved."""
    do_steps(kept, objects["model"], objects["optimizer"])
    assert kept._saver.memory.answered.wait(TIMEOUT_S)
    arena = script.node.lend(0, FOR_ALL)
    assert script.saved(kept) == 2
    assert [place.read() for place in arena.smalls] == [None] * len(arena.smalls), "they are those of the other rank"
    return state_of(objects)


@pytest.mark.parametrize("savers", [1, 0], ids=["refused", "no saver"])
def test_what_is_saved_into_lent_memory_comes_back(
    script: Script, monkeypatch: pytest.MonkeyPatch, savers: int
) -> None:
    """The worker was refused memory of its own, or it is not one of those that save."""
    monkeypatch.setattr("workerlib.keeping.step_saver.SAVERS", savers)
    script.node.refuse = savers > 0
    objects = network_and_optimizer(torch.optim.AdamW)
    with script.runs(objects) as (_, kept):
        expected = trained(script, kept, objects)
    script.check_resumed(network_and_optimizer(torch.optim.AdamW), 2, expected)


def test_nothing_waits_for_memory_that_was_refused(script: Script) -> None:
    script.node.refuse = True
    with script.trains() as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        assert kept._saver.memory.answered.wait(TIMEOUT_S)
        assert not kept._saver.memory.awaited


def test_memory_that_a_worker_may_not_map_is_refused_in_words(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    limits, mapped = resource.getrlimit(resource.RLIMIT_AS), int(Path("/proc/self/statm").read_text().split()[0])
    script.node.refuse = True
    with script.trains() as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        assert kept._saver.memory.answered.wait(TIMEOUT_S)
        kept._saver.memory.refused = False
        most = mapped * resource.getpagesize() + 600_000_000
        resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
        try:
            script.node.lend(0, ArenaSizes.at_least(130_000_000, 4_096))  # the node of the test maps it as well
            answer = script.save(kept)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
    assert isinstance(answer, NotSaved), answer
    assert "is not kept: Cannot allocate memory; ulimit -v or the host's memory limits it" in caplog.text
