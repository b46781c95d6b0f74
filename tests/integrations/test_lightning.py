"""Lightning's Trainer and Fabric under nodeclient."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.conftest import Train, need

pytestmark = need("lightning", "torchdata")


def test_trainer(train: Train, tmp_path: Path) -> None:
    job = train(
        "lightning_trainer.py", "--checkpoints", tmp_path, preload="lightning.pytorch,torchdata.stateful_dataloader"
    )
    job.break_twice()
    job.finish()
    assert "done after step 2000" in job.output
    assert "your dataloader is not resumable" not in job.output


def test_fabric(train: Train, tmp_path: Path) -> None:
    job = train("lightning_fabric.py", "--checkpoints", tmp_path, preload="lightning.fabric")
    job.break_twice()
    job.finish()
    assert "done after step 3000" in job.output
