"""Stock torch reads what agents have written, without any of this project's code."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from nodeclient.keeping.disk.durable_file import Progress
from nodeclient.keeping.disk.part_files import write_big, write_small
from nodeclient.keeping.disk.step_folder import StepName, begin, commit
from tests.support.kept_places import Parts, held, sharded, small_bytes, whole
from workerlib.contract.arena import Commit

pytestmark = pytest.mark.slow

pytest.importorskip("safetensors", reason="stock torch reads such files with it")

BUFFERS = {"model.norm.running_mean": torch.arange(4.0)}

TYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    torch.bool,
)


def persist(job: Path, ranks: list[Parts], shards: int) -> Path:
    """Write a step that these ranks have; return its folder."""
    of = StepName("r-1", 3, 1204, len(ranks), shards)
    folder = begin(job, of)
    for rank, parts in enumerate(ranks):
        place = Commit(1204, 3, 0, rank, len(ranks), rank % shards, shards, 0)
        part = held(parts, place, small_bytes(BUFFERS, {"tokens": rank}))
        if rank < shards:
            write_big(folder, of, part, Progress())
        write_small(folder, of, part, Progress(), buffers=rank == 0)
    commit(job, of, 0, Progress())
    return folder


@contextmanager
def one_rank_of(world_size: int, rank: int) -> Iterator[None]:
    """Let this process be a rank among ranks that are not there: loading needs nothing of them."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def load(state: dict[str, Any], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        dcp_load(state, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)


def test_a_model_of_all_types_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(1)
    tensors = {f"model.{kind}": (torch.rand(5, 3) * 50).to(kind) for kind in TYPES}
    tensors |= {"model.scalar": torch.tensor(2.5), "model.empty": torch.empty(0, 4), "optim.w/step": torch.tensor(7.0)}
    folder = persist(tmp_path, [whole(tensors)] * 2, 1)
    wanted = {name: torch.zeros_like(tensor) for name, tensor in (tensors | BUFFERS).items()}
    load(wanted, folder)
    for name, tensor in (tensors | BUFFERS).items():
        assert wanted[name].dtype == tensor.dtype
        assert torch.equal(wanted[name].view(torch.uint8) if tensor.dim() else wanted[name], _raw(tensor)), name


def test_three_shards_are_read_by_two_ranks_and_by_one(tmp_path: Path) -> None:
    torch.manual_seed(2)
    big = {"model.weight": torch.rand(7, 3).to(torch.bfloat16), "optim.weight/exp_avg": torch.rand(4, 2)}
    alike = {"optim.weight/step": torch.tensor(1204.0)}
    folder = persist(tmp_path, [{**sharded(big, shard, 3), **whole(alike)} for shard in range(3)], 3)
    nested = {"model": {"weight": torch.zeros(7, 3, dtype=torch.bfloat16)}}
    load(nested, folder)
    assert torch.equal(nested["model"]["weight"], big["model.weight"])
    for rank in range(2):
        with one_rank_of(2, rank):
            mesh = init_device_mesh("cpu", (2,))
            mine = {name: distribute_tensor(torch.zeros_like(tensor), mesh, [Shard(0)]) for name, tensor in big.items()}
            wanted = mine | {name: torch.zeros_like(tensor) for name, tensor in alike.items()}
            load(wanted, folder)
            for name, (piece, _, _) in sharded(big, rank, 2).items():
                assert torch.equal(mine[name].to_local(), piece), name
            assert wanted["optim.weight/step"] == alike["optim.weight/step"]


def test_a_type_that_the_format_lacks_is_written_beside_and_is_in_no_ones_way(tmp_path: Path) -> None:
    tensors = {"model.weight": torch.rand(3), "model.phases": torch.rand(3, dtype=torch.complex128)}
    folder = persist(tmp_path, [whole(tensors)], 1)
    wanted = {"model.weight": torch.zeros(3)}
    load(wanted, folder)
    assert torch.equal(wanted["model.weight"], tensors["model.weight"])


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dim() else tensor
