"""torchdata's StatefulDataLoader: each sample once an epoch, through a lost node and a planned stop."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import Train, need

pytestmark = need("torchdata")

SAMPLES = 1600
STEPS = 2000
STEPS_OF_EPOCH = SAMPLES // 16


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it
@pytest.mark.parametrize(("workers", "twice", "lost"), [(1, 32, 0), (2, 0, 0), (4, 0, 64)])
def test_the_state_of_a_loader_is_that_of_one_world_size(workers: int, twice: int, lost: int) -> None:
    """These are the numbers in docs/integrations.md."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415  # may be missing
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: PLC0415  # as above

    samples = list(range(160))

    def load(world_size: int, rank: int) -> Any:
        sampler = StatefulDistributedSampler(samples, world_size, rank, shuffle=True, seed=0)
        return StatefulDataLoader(samples, batch_size=8, sampler=sampler)

    states, used = [], Counter[int]()
    for rank in range(2):
        loader = load(2, rank)
        for batch in islice(loader, 4):
            used.update(batch.tolist())
        states.append(loader.state_dict())
    for rank in range(workers):
        loader = load(workers, rank)
        loader.load_state_dict(states[rank % 2])
        for batch in loader:
            used.update(batch.tolist())
    assert (sum(times > 1 for times in used.values()), len(samples) - len(used)) == (twice, lost)


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
