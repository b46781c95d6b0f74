"""A worker on a GPU says where it stands, and when it came to its last collectives, by the recorder of NCCL."""

from pathlib import Path

import pytest

from coordinatord.protocol.arrival_messages import unpack_ages
from coordinatord.protocol.stack_messages import CollectiveState, GroupPlace, GroupStage, WorkerStacks, unpack_places
from nodeclient.host.devices import Gpu
from tests.nodeclient.diagnosis.stage import TORCH, staged

pytestmark = pytest.mark.slow


def state_of(found: WorkerStacks) -> CollectiveState | None:
    """Return how far a worker is with its collective."""
    return None if found.collective is None else found.collective.state


async def test_a_worker_with_nccl_beside_gloo_tells_of_both(gpus: list[Gpu], tmp_path: Path) -> None:
    del gpus
    async with staged(tmp_path) as stage:
        stage.start("trains_on_gpu", imports=TORCH)
        found = await stage.look(lambda found: state_of(found) is CollectiveState.DONE)
        assert found.collective is not None
        assert (found.collective.operation, found.collective.number) == ("gloo:all_reduce", 30)
        assert found.collective.shape == "1 Float"
        assert unpack_places(found.places) == (GroupPlace("default_pg.nccl", GroupStage.DONE, 60),)
        workers = (await stage.arrivals()).workers
        while not workers:  # a busy host may take its time
            workers = (await stage.arrivals()).workers
        counted = {group.group: (group.first, len(unpack_ages(group.ages))) for group in workers[0].groups}
        assert counted == {"nccl default_pg": (11, 50), "gloo default_pg": (1, 30)}
