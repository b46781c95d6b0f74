"""Who gets the memory of a worker that has ended, where it does not suffice for all who save."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinatord.protocol.kept_state import KeptStep
from nodeclient.core.effects import Protect, Restore, SaveKept
from nodeclient.core.events import KeptSaved
from nodeclient.keeping.round_memory import Loan, RoundMemory
from tests.nodeclient.keeping.stage import BIG, RUN, SMALL, KeepingNode, KeepingWorker, keeping_nodes
from workerlib.contract.arena import Arena
from workerlib.contract.channel_messages import NotSaved, Reserve, Reserved, Saved, SaveNow

WANTED = Reserve(3_000_000, 1_000, 0, 1)


def memory_with(*given: int, refused: tuple[int, ...] = ()) -> RoundMemory:
    """Return the memory of a round in which some workers got memory, and others did not."""
    memory = RoundMemory()
    for local_rank in (*given, *refused):
        assert memory.request(local_rank, WANTED)
        if local_rank in given:
            memory.record_reserved(local_rank)
        memory.reserving.discard(local_rank)
    return memory


def test_memory_that_comes_after_the_end_of_its_worker_is_lent() -> None:
    memory = memory_with(refused=(1,))
    assert memory.request(0, WANTED)
    memory.end(0)
    assert memory.lend({1}) is None
    memory.record_reserved(0)
    memory.reserving.discard(0)
    assert memory.lend({1}) == Loan(0, 1)


def test_a_worker_that_waits_for_memory_borrows_once_it_is_refused() -> None:
    memory = memory_with(0)
    assert memory.request(1, WANTED)
    memory.end(0)
    assert memory.lend({1}) is None
    memory.reserving.discard(1)
    assert memory.lend({1}) == Loan(0, 1)


def test_nothing_is_lent_twice() -> None:
    memory = memory_with(0, refused=(1, 2))
    memory.end(0)
    assert memory.lend({1, 2}) == Loan(0, 1)
    assert memory.lend({1, 2}) is None
    assert memory.lend({2}) is None, "the borrower may still write: only its connection is gone"
    memory.end(1)
    assert memory.lend({1, 2}) == Loan(0, 2)
    memory.end(2)
    assert memory.lend({1, 2}) is None


def test_nothing_is_lent_to_a_worker_that_has_another_shard() -> None:
    memory = RoundMemory()
    for shard in range(2):
        assert memory.request(shard, replace(WANTED, shard=shard, shards=2))
    memory.record_reserved(0)
    memory.reserving.clear()
    memory.end(0)
    assert memory.lend({1}) is None


def test_two_that_end_lend_to_one_that_is_left_once() -> None:
    memory = memory_with(0, 1, refused=(2, 3))
    memory.end(0)
    assert memory.lend({1, 2, 3}) is None
    memory.end(1)
    assert memory.lend({2, 3}) == Loan(1, 2)
    assert memory.lend({2, 3}) is None
    memory.end(2)
    assert memory.lend({3}) == Loan(1, 3)


def test_a_worker_that_has_ended_is_given_nothing() -> None:
    memory = memory_with(0, refused=(1,))
    memory.end(0)
    memory.end(1)
    assert not memory.request(0, WANTED)
    assert memory.lend({0, 1}) is None, "the connection of one that has ended may last longer than its process"


def test_the_end_of_a_worker_is_awaited_only_where_its_memory_is_needed() -> None:
    memory = memory_with(0, 1, refused=(2,))
    assert memory.awaited({1, 2}) == set()
    assert memory.awaited({2}) == {0, 1}
    memory.end(0)
    assert memory.awaited({2}) == {1}
    assert memory.awaited(set()) == set()


# On a node

FOR_ONE = 4 * len(BIG)
"""Memory for the big state of one worker."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[KeepingNode]:
    """Yield a node that has memory for one of its two workers."""
    async with keeping_nodes(tmp_path, "a", workers=2, memory=FOR_ONE) as [node]:
        yield node


async def workers_of(node: KeepingNode, round_number: int = 1) -> list[KeepingWorker]:
    """Have the workers of a round ask for memory, one after the other."""
    workers = node.start(round_number)
    for worker in workers:
        await worker.reserve()
    return workers


def end(node: KeepingNode, worker: KeepingWorker) -> None:
    worker.die()
    node.keeper.record_exit(worker.local_rank)


async def lent(worker: KeepingWorker) -> Arena:
    """Return the memory that a worker gets without having asked for it."""
    message, files = await worker.receive()
    assert message == Reserved(lent=True)
    return worker.attach(files)


async def test_the_worker_that_was_refused_saves_into_the_memory_of_the_one_that_has_died(node: KeepingNode) -> None:
    first, second = await workers_of(node)
    first.save(6)
    end(node, first)
    await lent(second)
    node.keeper.carry_out(SaveKept(planned=False))
    assert isinstance((await second.receive())[0], SaveNow)
    second.save(7, small=None)
    await node.keeper.end_round()
    holding = node.reported()
    assert {(part.step, part.first_rank) for part in holding.parts if part.big} == {(6, 0), (7, 1)}


async def test_the_small_state_of_a_worker_that_is_refused_memory_for_the_big_one_is_kept(node: KeepingNode) -> None:
    _, second = await workers_of(node)
    assert second.arena is not None
    assert second.arena.sizes.generation == 0
    assert second.arena.sizes.small >= len(SMALL)
    assert len(node.texts) == 1
    assert "the state of local rank 1 is not kept" in node.texts[0]


async def test_a_protected_step_in_lent_memory_stays(node: KeepingNode) -> None:
    first, second = await workers_of(node)
    for step in (5, 6, 7):
        first.save(step, small=None)
    node.keeper.carry_out(Protect(RUN, (KeptStep(1, 5),)))
    end(node, first)
    await lent(second)
    second.save(8, small=None)
    await node.keeper.end_round()
    holding = node.reported()
    assert {part.step for part in holding.parts if part.big} == {5, 7, 8}


async def test_lent_memory_is_that_of_its_owner_in_the_next_round(node: KeepingNode) -> None:
    first, second = await workers_of(node)
    end(node, first)
    await lent(second)
    second.save(7, small=None)
    await node.keeper.end_round()
    first, second = await workers_of(node, 2)
    assert first.arena is not None
    assert [commit.step for place in first.arena.generations if (commit := place.read())] == [7]
    assert second.arena is not None
    assert second.arena.sizes.generation == 0


async def asked(worker: KeepingWorker) -> int:
    """Return the number of the request to save that a worker gets next."""
    message, _ = await worker.receive()
    assert isinstance(message, SaveNow)
    return message.number


def has_answered(node: KeepingNode) -> bool:
    return any(isinstance(event, KeptSaved) for event in node.events)


async def test_one_that_is_left_saves_if_the_borrower_dies_within_its_save(tmp_path: Path) -> None:
    """The connection of the borrower is gone before its process has ended: the request stays open until then."""
    async with keeping_nodes(tmp_path, "a", workers=3, memory=FOR_ONE) as [node]:
        first, second, third = await workers_of(node)
        end(node, first)
        arena = await lent(second)
        node.keeper.carry_out(SaveKept(planned=False))
        number = await asked(second)
        assert arena.begin_generation(1) is not None
        second.die()
        await node.until(lambda: 1 not in node.keeper._channel.connected)
        assert not has_answered(node)
        node.keeper.record_exit(1)
        await lent(third)
        assert await asked(third) == number
        third.save(7, small=None)
        third.send(Saved(7, 0.25, len(BIG), number))
        await node.until(lambda: has_answered(node))
        await node.keeper.end_round()
        holding = node.reported()
        assert {(part.step, part.first_rank) for part in holding.parts if part.big} == {(7, 2)}


async def test_a_request_that_comes_between_the_two_signs_of_a_death_waits_for_the_second(node: KeepingNode) -> None:
    first, second = await workers_of(node)
    first.die()
    await node.until(lambda: 0 not in node.keeper._channel.connected)
    node.keeper.carry_out(SaveKept(planned=False))
    assert not has_answered(node)
    node.keeper.record_exit(0)
    await lent(second)
    number = await asked(second)
    second.send(NotSaved("no step was done", number))
    await node.until(lambda: has_answered(node))


async def test_the_end_of_a_worker_that_was_held_takes_no_memory_from_the_one_in_its_place(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a") as [node]:
        held = node.worker(node.begin(1))
        await held.reserve()
        await node.keeper.end_round()
        node.keeper.carry_out(Restore(RUN, 2, None))
        node.keeper.record_exit(held.local_rank)
        assert isinstance(await node.worker(node.begin(2)).reserve(), Reserved)


async def test_a_worker_that_ends_while_it_waits_for_memory_is_not_waited_for_later(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=1) as [node]:
        worker = node.worker(node.begin(1))
        worker.send(Reserve(len(BIG), len(SMALL), 0, 1))
        worker.die()
        arenas, memory = node.keeper._resources.arenas, node.keeper._memory._memory
        await node.until(lambda: arenas.memory.used_bytes > 0 and not memory.reserving)
        assert not node.keeper._round.halting
