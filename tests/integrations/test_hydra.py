"""Hydra: a sweep that is broken twice has one folder, and a log for each worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.conftest import Train, need

pytestmark = need("hydra-core")


def test_sweep(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = train("hydra_app.py", "--multirun", "learning_rate=0.01,0.02", preload="hydra,torch.distributed")
    job.break_twice()
    run = job.cluster.await_state()["run"]
    job.finish()

    assert [path.name for path in (tmp_path / "outputs").iterdir()] == [run]
    for number, rounds in (("0", 3), ("1", 1)):
        folder = tmp_path / "outputs" / run / number
        assert (folder / "model.pt").exists()
        logs = [(folder / f"rank-{rank}.log").read_text() for rank in range(2)]
        assert [text.count("done after step 1500") for text in logs] == [1, 1]
        assert [text.count("goes on after step") for text in logs] == [rounds, 0]
