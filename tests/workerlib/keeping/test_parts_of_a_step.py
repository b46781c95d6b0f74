"""Where a step has several parts, a worker that is killed in any of them leaves a whole step: the last one or this."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.keeping import Keep, play, workers
from tests.support.kept_adversaries import EVALUATING, POINTS, train_adversaries
from tests.support.kept_training import notes_of
from tests.support.programs import TIMEOUT_S
from tests.support.undisturbed import train_undisturbed

pytestmark = pytest.mark.slow

WORLD_SIZE = 2

STEPS_A_ROUND = 8
"""Steps are saved at an interval by then."""

STEPS = (len(POINTS) + 2) * STEPS_A_ROUND

COMPLETED = {"generator gradients", "generator optimizer", EVALUATING, "evaluated"}
"""The points from which on the others complete the step without the worker that was killed."""


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    keep = Keep(tmp_path, WORLD_SIZE)
    yield keep
    keep.close()


def test_a_worker_killed_in_any_part_of_a_step_leaves_a_whole_one(keep: Keep, tmp_path: Path) -> None:
    """The worker of rank 1 dies in another part of a step in each round, at last within its evaluation."""
    (calm := tmp_path / "calm").mkdir()
    undisturbed = train_undisturbed(calm, WORLD_SIZE, STEPS, train_adversaries)
    for number, point in enumerate((*POINTS, EVALUATING), 1):
        step = number * STEPS_A_ROUND - 1 - (point == EVALUATING)
        with workers(keep, train_adversaries, WORLD_SIZE, number, tmp_path, STEPS, (1, step, point)) as started:
            started[1].join(TIMEOUT_S)
            [answer] = keep.save(0)
        assert keep.choose().step == (step if point in COMPLETED else step - 1), (point, answer)
    for kind in ("txt", "begins"):
        for rank, steps in notes_of(tmp_path, kind).items():
            for at, said in steps.items():
                assert at < 0 or {digest for _, digest in said} == {undisturbed[rank][at]}, (rank, at, said)
    play(keep, train_adversaries, WORLD_SIZE, len(POINTS) + 2, tmp_path, step + 2)
    # Nobody knows what rank 1 would have had at the end of that step: it has what it had before the evaluation.
    begun = notes_of(tmp_path, "begins")
    assert begun[0][step][-1][1] == undisturbed[0][step]
    chain, *own = begun[1][step][-1][1].split("-")
    assert chain == undisturbed[1][step].split("-")[0]
    assert own != undisturbed[1][step].split("-")[1:]
    last = {notes_of(tmp_path)[rank][step + 1][-1][1].split("-")[0] for rank in range(WORLD_SIZE)}
    assert len(last) == 1
