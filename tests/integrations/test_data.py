"""torchdata's StatefulDataLoader: each sample once an epoch, through a lost node and a planned stop."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.integrations.conftest import Train, need

pytestmark = need("torchdata")

SAMPLES = 1600
STEPS = 2000
STEPS_OF_EPOCH = SAMPLES // 16


def test_stateful_data_loader(train: Train, tmp_path: Path) -> None:
    job = train(
        "stateful_loader.py", "--checkpoints", tmp_path, "--trace", tmp_path, preload="torchdata.stateful_dataloader"
    )
    job.break_twice()
    job.finish()
    assert f"done after step {STEPS}" in job.output

    epochs: dict[int, Counter[int]] = {}
    for rank in range(2):
        steps: dict[int, list[int]] = {}
        for line in (tmp_path / f"rank-{rank}.txt").read_text().splitlines():
            step, *rest = map(int, line.split())
            # A step that is done again, as its checkpoint was older, has the samples that it had.
            assert steps.setdefault(step, rest) == rest
        assert list(steps) == list(range(1, STEPS + 1))
        for epoch, *samples in steps.values():
            epochs.setdefault(epoch, Counter()).update(samples)
    assert epochs == {epoch: Counter(range(SAMPLES)) for epoch in range(STEPS // STEPS_OF_EPOCH)}
