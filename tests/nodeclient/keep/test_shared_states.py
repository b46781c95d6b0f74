"""A state that several workers have is reported with a digest, by which those of all ranks are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nodeclient.keep.stage import BIG, keeping_nodes

pytestmark = pytest.mark.asyncio


async def test_a_state_that_several_workers_have_is_named_with_its_digest(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=2) as [node]:
        path = node.begin(1)
        workers = [node.worker(path, rank, rank, world_size=2) for rank in range(2)]
        for worker in workers:
            await worker.reserve()
            worker.save(7)
        workers[1].save(8, big=bytes(reversed(BIG)))
        workers[0].save(8)
        await node.keeper.note_end()
        holding = node.holding()
        assert holding is not None
        digests = {(part.step, part.first_rank): part.digest for part in holding.parts if part.big}
        assert digests.keys() == {(7, 0), (8, 0), (8, 1)}, "ranks with the same state share a group"
        assert None not in digests.values()
        assert digests[8, 0] != digests[8, 1]
