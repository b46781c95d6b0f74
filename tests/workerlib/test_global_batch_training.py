"""The losses of a training are those of a world that never changes, whatever its size is from step to step."""

import os
import re
from collections.abc import Sequence
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
from workerlib import ElasticDistributedSampler

pytestmark = pytest.mark.slow

SAMPLES, BATCH, MICRO = 107, 32, 3
"""An epoch ends with a batch of 11 samples, which is too small for the largest world."""

WORLDS = (4, 3, 7, 5, 8, 1, 12, 11, 4, 3, 12, 6, 11, 2, 8, 2, 9, 1, 7, 10, 4)
"""It changes twenty times."""

STEPS_OF_EACH = 5


def train(worlds: Sequence[int], dtype: torch.dtype) -> list[float]:
    """Train in rounds of so many ranks; return the loss of each step.

    This process plays all ranks in turn, and averages their gradients as DDP and FSDP2 do.
    """
    torch.manual_seed(1)
    data = torch.randn(SAMPLES, 9).to(dtype)
    labels = data[:, :5].argmax(1)
    model = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 5)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses: list[float] = []
    state = None
    for world_size in worlds:
        ranks = [
            ElasticDistributedSampler(range(SAMPLES), BATCH, micro=MICRO, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for sampler in ranks:
            if state is not None:
                sampler.load_state_dict(state)
        for _ in range(STEPS_OF_EACH):
            if not len(ranks[0]):
                for sampler in ranks:
                    sampler.set_epoch(sampler.epoch + 1)
            optimizer.zero_grad()
            losses.append(0.0)
            for sampler in ranks:
                for micro, samples in zip(sampler.micro_batches(), sampler, strict=True):
                    loss = cross_entropy(model(data[samples]), labels[samples]) * micro.weight / world_size
                    loss.backward()  # type: ignore[no-untyped-call]
                    losses[-1] += loss.item()
                    if micro.last:
                        break
                sampler.advance()
            optimizer.step()
        state = ranks[0].state_dict()
    return losses


@pytest.mark.parametrize(
    ("dtype", "relative"), [(torch.float64, 1e-6), pytest.param(torch.float32, 2e-3, marks=pytest.mark.long)]
)
def test_twenty_changes_of_size_change_no_loss(dtype: torch.dtype, relative: float) -> None:
    changed, fixed = train(WORLDS, dtype), train([4] * len(WORLDS), dtype)
    assert changed == pytest.approx(fixed, rel=relative)
    assert fixed[-1] < fixed[0] / 3, "it learns, so a wrong batch would show"


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
    ddp, fsdp2 = LOOPS
    [alone] = weights(tmp_path / "alone", ddp, world_size=1, micro=16)
    for rank in weights(tmp_path / "ddp", ddp, world_size=3, micro=1):
        torch.testing.assert_close(rank, alone, rtol=0, atol=1e-9)
    shards = zip(*weights(tmp_path / "fsdp2", fsdp2, world_size=3, micro=1), strict=True)
    torch.testing.assert_close([torch.cat(parts) for parts in shards], alone, rtol=0, atol=1e-9)
