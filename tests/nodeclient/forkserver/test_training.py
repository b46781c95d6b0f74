"""Real training on two nodes comes to the very same numbers with workers that were forked with torch in them."""

import secrets

import pytest

from nodeclient.forkserver.starter import lazy_imports
from tests.nodeclient.forkserver.support import Stage, python
from tests.support.cluster import Coordinator
from tests.support.programs import BIN, Program

pytestmark = pytest.mark.slow

TRAIN = """
import os, random, report, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        assert torch.utils.data.get_worker_info() is not None
        return torch.tensor([index / 64, 1.0]), torch.tensor([index / 32 - 1])

def main():
    report.report(by_chance=[torch.initial_seed(), torch.rand(4).tolist()], modules=sorted(sys.modules))
    torch.manual_seed(17)
    first = [torch.rand(2).tolist(), torch.get_num_threads(), torch.get_num_interop_threads()]
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = torch.utils.data.DistributedSampler(Numbers(), seed=3)
    losses = []
    for method in "fork", "spawn" if dist.get_rank() == 0 else "fork":
        loader = DataLoader(Numbers(), batch_size=8, sampler=sampler, num_workers=1, multiprocessing_context=method)
        for numbers, wanted in loader:
            loss = (model(numbers) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    dist.destroy_process_group()
    report.report(first=first, losses=losses, weights=[tensor.tolist() for tensor in model.parameters()])

if __name__ == "__main__":
    main()
"""


def train(stage: Stage, coordinator: Coordinator, *flags: str) -> list[object]:
    """Train on two nodes; return the reports of their workers."""
    stage.clear()
    job = ("--coord", coordinator.endpoint, "--job-id", f"preload-{secrets.token_hex(4)}", "--nnodes", "2")
    command = (str(BIN / "nodeclient"), "join", *job, *flags, "--", *python(stage.folder / "train.py"))
    environs = [stage.environ(NODECLIENT_NODE_ID=name) for name in "ab"]
    nodes = [Program(*command, environ=environ) for environ in environs]
    try:
        for node in nodes:
            assert node.wait() == 0, node.output
            assert node.leftovers() == []
    finally:
        for node in nodes:
            node.close()
    reports = stage.reports()
    assert {report.warm for report in reports} == {bool(flags)}
    by_chance = [str(report.facts["by_chance"]) for report in reports if "by_chance" in report.facts]
    assert len(set(by_chance)) == 2, "without a seed, torch draws one for each process"
    late = {late for name in flags for late in lazy_imports(name.split(","))}
    assert all(late <= {*report.facts["modules"]} for report in reports if "modules" in report.facts)
    return [report.facts for report in reports if "losses" in report.facts]


@pytest.mark.long
def test_training_comes_to_the_same_numbers(stage: Stage, coordinator: Coordinator) -> None:
    pytest.importorskip("torch")
    stage.write("train.py", TRAIN)
    cold = train(stage, coordinator)
    assert len(cold) == 2
    assert train(stage, coordinator, "--preload", "beacon,torch") == cold
