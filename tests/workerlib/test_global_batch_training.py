"""The loops of the page learn the same on several workers as on one."""

import os
import re
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import workerlib
from tests.support.keeping import Keep, play
from tests.support.torch_names import skip_without

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training-script.md"

LOOPS = re.findall(r"```python\n(with .*?)```", PAGE.read_text(), re.DOTALL)


def run_loop(folder: Path, loop: str, micro: int) -> None:
    """Run a loop of the page as one worker, and save its part of the weights."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  # it takes long, and DDP does without

    torch.manual_seed(2)
    torch.set_default_dtype(torch.float64)
    data = torch.randn(42, 9)
    names: dict[str, Any] = {
        "DataLoader": DataLoader,
        "DistributedDataParallel": DistributedDataParallel,
        "cross_entropy": cross_entropy,
        "fully_shard": fully_shard,
        "nullcontext": nullcontext,
        "torch": torch,
        "workerlib": workerlib,
        "Model": lambda: nn.Sequential(nn.Linear(9, 17), nn.Tanh(), nn.Linear(17, 5)),
        "dataset": TensorDataset(data, data[:, :5].argmax(1)),
        "epochs": 3,
    }
    exec(loop.replace("batch_size=1024, micro=16", f"batch_size=10, micro={micro}"), names)  # noqa: S102  # our page
    parts = [getattr(tensor, "_local_tensor", tensor).detach() for tensor in names["model"].parameters()]
    torch.save(parts, folder / f"{os.environ['RANK']}.pt")


def weights(folder: Path, loop: str, world_size: int, micro: int) -> list[list[Tensor]]:
    """Run a loop of the page; return the part that each rank has of the weights."""
    folder.mkdir()
    with closing(Keep(folder, world_size)) as keep:
        play(keep, run_loop, world_size, 1, folder, loop, micro)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world_size)]


def test_the_loops_of_the_page_learn_the_same_on_three_workers_as_on_one(tmp_path: Path) -> None:
    """Some ranks have stand-ins: micro-batches have one sample, and at the end two are left for three ranks."""
    skip_without("torch.distributed.fsdp:fully_shard")
    ddp, fsdp2 = LOOPS
    [alone] = weights(tmp_path / "alone", ddp, world_size=1, micro=16)
    for rank in weights(tmp_path / "ddp", ddp, world_size=3, micro=1):
        torch.testing.assert_close(rank, alone, rtol=0, atol=1e-9)
    shards = zip(*weights(tmp_path / "fsdp2", fsdp2, world_size=3, micro=1), strict=True)
    torch.testing.assert_close([torch.cat(parts) for parts in shards], alone, rtol=0, atol=1e-9)
