"""Where memory does not suffice for all who save, a worker that is left gets that of one that has ended."""

from pathlib import Path

from coordinatord.protocol.kept_state import KeptStep
from nodeclient.core.effects import Protect, Restore, SaveKept
from nodeclient.core.events import KeptSaved
from tests.nodeclient.keeping.stage import BIG, RUN, SMALL, KeepingNode, KeepingWorker, keeping_nodes
from workerlib.contract.arena import Arena
from workerlib.contract.channel_messages import NotSaved, Reserve, Reserved, Saved, SaveNow

FOR_ONE = 4 * len(BIG)
"""Memory for the big state of one worker."""


async def workers_of(node: KeepingNode, round_number: int = 1) -> list[KeepingWorker]:
    """Have the workers of a round ask for memory, one after the other."""
    path = node.begin(round_number)
    workers = [node.worker(path, rank, rank, node.workers) for rank in range(node.workers)]
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


async def test_the_worker_that_was_refused_saves_into_the_memory_of_the_one_that_has_died(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=2, memory=FOR_ONE) as [node]:
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


async def test_the_small_state_of_a_worker_that_is_refused_memory_for_the_big_one_is_kept(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=2, memory=FOR_ONE) as [node]:
        _, second = await workers_of(node)
        assert second.arena is not None
        assert second.arena.sizes.generation == 0
        assert second.arena.sizes.small >= len(SMALL)
        assert len(node.texts) == 1
        assert "the state of local rank 1 is not kept" in node.texts[0]


async def test_a_protected_step_in_lent_memory_stays(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=2, memory=FOR_ONE) as [node]:
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


async def test_lent_memory_is_that_of_its_owner_in_the_next_round(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=2, memory=FOR_ONE) as [node]:
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


async def test_a_request_that_comes_between_the_two_signs_of_a_death_waits_for_the_second(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=2, memory=FOR_ONE) as [node]:
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
