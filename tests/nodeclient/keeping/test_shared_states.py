"""A state that several workers have is reported with a digest, by which those of all ranks are compared."""

from pathlib import Path

from nodeclient.core.effects import TellAlike
from tests.nodeclient.keeping.stage import BIG, keeping_nodes
from workerlib.contract.channel_messages import Comparison, FirstState


async def test_a_state_that_several_workers_have_is_named_with_its_digest(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=2) as [node]:
        path = node.begin(1)
        workers = [node.worker(path, rank, rank, world_size=2) for rank in range(2)]
        for worker in workers:
            await worker.reserve()
            worker.save(7)
        workers[1].save(8, big=bytes(reversed(BIG)))
        workers[0].save(8)
        await node.keeper.end_round()
        holding = node.reported()
        digests = {(part.step, part.first_rank): part.digest for part in holding.parts if part.big}
        assert digests.keys() == {(7, 0), (8, 0), (8, 1)}, "ranks with the same state share a group"
        assert None not in digests.values()
        assert digests[8, 0] != digests[8, 1]


async def test_workers_are_told_whether_all_have_the_same_state_once_all_of_their_node_have_one(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=2) as [node]:
        path = node.begin(1)
        first, second = (node.worker(path, rank, rank, world_size=2) for rank in range(2))
        first.send(FirstState(5))
        await first.reserve()
        holding = node.holding(workers=True)
        assert holding is None or not holding.first_states, "the other worker may have another state"
        second.send(FirstState(5))
        await node.reports(lambda holding: holding.first_states == (5,), workers=True)
        node.keeper.carry_out(TellAlike(alike=True))
        assert [(await worker.receive())[0] for worker in (first, second)] == [Comparison(alike=True)] * 2


async def test_two_different_states_are_named_at_once_and_who_comes_later_is_told_at_once(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=3) as [node]:
        path = node.begin(1)
        workers = [node.worker(path, rank, rank, world_size=3) for rank in range(3)]
        for worker, digest in zip(workers, (7, 5), strict=False):
            worker.send(FirstState(digest))
        await node.reports(lambda holding: holding.first_states == (5, 7), workers=True)
        node.keeper.carry_out(TellAlike(alike=False))
        workers[2].send(FirstState(6))
        assert [(await worker.receive())[0] for worker in workers] == [Comparison(alike=False)] * 3
