"""Lightning's Trainer and Fabric under nodeclient."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integrations.conftest import Train, need

pytestmark = need("lightning", "torchdata")


@pytest.mark.parametrize("kept", [True, False], ids=["from memory", "from checkpoints"])
def test_trainer(train: Train, tmp_path: Path, kept: bool) -> None:
    modules = "lightning.pytorch,torchdata.stateful_dataloader"
    flags = () if kept else ("--keep-memory", "0")
    job = train("lightning_trainer.py", "--checkpoints", tmp_path, preload=modules, flags=flags)
    job.break_twice(kept=kept)
    job.finish()
    assert "done after step 2000" in job.output
    assert "your dataloader is not resumable" not in job.output


def test_a_step_of_several_batches_is_reported_once(train: Train, tmp_path: Path) -> None:
    modules = "lightning.pytorch,torchdata.stateful_dataloader"
    job = train(
        "lightning_trainer.py", "--checkpoints", tmp_path, "--accumulate", "4", "--steps", "100", preload=modules
    )
    job.finish()
    assert "done after step 100" in job.output
    assert "was reported after step" not in job.output


def test_a_killed_node_does_not_change_the_order_of_the_data(train: Train, tmp_path: Path) -> None:
    modules = "lightning.pytorch,torchdata.stateful_dataloader"
    for disturbed in (True, False):
        folder = tmp_path / str(disturbed)
        job = train("lightning_trainer.py", "--checkpoints", folder, "--steps", "400", preload=modules)
        if disturbed:
            job.await_step(1, 50)  # an epoch has 32 steps
            job.replace_node("b")
        job.finish()
    learned = re.findall(r"done after step 400: learned (.*)", job.output)
    assert len(learned) == 2, "the output is that of both trainings"
    assert learned[0] == learned[1]


def test_fabric(train: Train, tmp_path: Path) -> None:
    job = train("lightning_fabric.py", "--checkpoints", tmp_path, preload="lightning.fabric")
    job.break_twice()
    job.finish()
    assert "done after step 3000" in job.output
