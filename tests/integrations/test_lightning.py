"""Lightning's Trainer and Fabric under nodeclient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.integrations.conftest import Train, check_order, need
from workerlib.stop import STOP_REQUEST

pytestmark = [pytest.mark.slow, need("lightning", "torchdata")]


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
    check_order(train, tmp_path, "lightning_trainer.py", 400, modules)


@pytest.fixture
def unsignalled() -> Iterator[None]:
    """Take back the handlers of signals that a callback installs in this process."""
    yield
    STOP_REQUEST.close()


@pytest.mark.usefixtures("unsignalled")
@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_checkpoint_of_any_step_goes_on_at_the_right_place_in_the_data(tmp_path: Path, workers: int) -> None:
    from tests.integrations.lightning_places import fit  # noqa: PLC0415  # Lightning may be missing

    undisturbed = fit(2, 16, tmp_path / "undisturbed")
    for step in range(1, 9):  # an epoch of two workers has 4 batches
        epoch, batch = divmod(step, 4)
        path = tmp_path / "undisturbed" / f"{step}.ckpt"
        checkpoint = torch.load(path, weights_only=True)
        # Lightning takes this process for the only worker.
        checkpoint["loops"]["fit_loop"]["world_size"] = 1 if workers == 2 else 2
        torch.save(checkpoint, path)
        begun = fit(workers, step + 8, tmp_path / "again", path)
        if workers == 2:
            assert begun == undisturbed[step : step + 8]
        elif batch < 8 // workers:
            assert begun[0] == (epoch, batch, 0), "the epoch's first sample comes again"
        else:
            assert begun[0] == (epoch, 0, 0), "that would have been more batches than there are now"


def test_fabric(train: Train, tmp_path: Path) -> None:
    job = train("lightning_fabric.py", "--checkpoints", tmp_path, preload="lightning.fabric")
    job.break_twice()
    job.finish()
    assert "done after step 3000" in job.output
