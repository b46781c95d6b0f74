"""Workers that are killed at any point of a step cost none, and the training goes on as if nothing had happened."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.dying import die_within
from tests.support.keeping import Keep, play, workers
from tests.support.kept_adversaries import EVALUATING, PARTS, train_adversaries
from tests.support.kept_training import POINTS, notes_of, train_ddp, train_sharded
from tests.support.programs import TIMEOUT_S
from tests.support.torch_names import skip_without
from tests.support.undisturbed import train_undisturbed
from workerlib.contract.channel_messages import Reserve

pytestmark = pytest.mark.slow


STEPS_A_ROUND = 5
"""A worker has its memory by then."""

STEPS = (len(POINTS) + 1) * STEPS_A_ROUND

KILLED_AT = STEPS_A_ROUND

WORLD_SIZE = 3

TENSORS = 16
"""Four parameters of two layers, and three of AdamW's for each of them."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[int, str]]:
    """Return the digests of a training that nothing happens to, by rank and step."""
    return train_undisturbed(tmp_path_factory.mktemp("undisturbed"), WORLD_SIZE, STEPS)


def test_killed_workers_cost_no_step(keep: Keep, tmp_path: Path, undisturbed: dict[int, dict[int, str]]) -> None:
    """The worker of rank 1 dies at another point of a step in each round."""
    deaths = [(1, number * STEPS_A_ROUND, point) for number, point in enumerate(POINTS, 1)]
    for number, death in enumerate(deaths, 1):
        with workers(keep, train_ddp, WORLD_SIZE, number, tmp_path, STEPS, death) as started:
            started[1].join(TIMEOUT_S)
            keep.save(0, 2)
            for survivor in (started[0], started[2]):  # it notes its last step after that is kept
                survivor.join(TIMEOUT_S)
        resume = keep.choose()
        done = max(step for steps in notes_of(tmp_path).values() for step in steps)
        assert resume.step == done, (death, resume, [node.messages for node in keep.nodes])
    play(keep, train_ddp, WORLD_SIZE, len(deaths) + 1, tmp_path, STEPS)
    for rank, steps in notes_of(tmp_path).items():
        for step, said in steps.items():
            assert [digest for _, digest in said] == [undisturbed[rank][step]], (rank, step, said)
        assert set(range(STEPS)) - {step for dead, step, _ in deaths if dead == rank} <= set(steps)


def train_and_die_in_restore(folder: Path, steps: int, rank: int) -> None:
    """Train; the worker of a rank dies while it brings back what was kept."""
    if os.environ["RANK"] == str(rank):
        die_within("restore", 30)
    train_ddp(folder, steps)


def test_a_worker_killed_while_it_restores_has_its_own_state_once_more(
    keep: Keep, tmp_path: Path, undisturbed: dict[int, dict[int, str]]
) -> None:
    """The others save the same step again, but nobody else has what was this rank's own."""
    with workers(keep, train_ddp, WORLD_SIZE, 1, tmp_path, STEPS, (1, KILLED_AT, "before")) as started:
        started[1].join(TIMEOUT_S)
        keep.save(0, 2)
    assert keep.choose().step == KILLED_AT - 1
    with workers(keep, train_and_die_in_restore, WORLD_SIZE, 2, tmp_path, STEPS, 1) as started:
        started[1].join(TIMEOUT_S)
        assert started[1].exitcode == -signal.SIGKILL
        for survivor in (0, 2):
            keep.await_message(survivor, Reserve)
        keep.save(0, 2)
    assert keep.choose().step == KILLED_AT - 1
    play(keep, train_ddp, WORLD_SIZE, 3, tmp_path, STEPS)
    begun = notes_of(tmp_path, "begins")
    for rank in range(WORLD_SIZE):
        assert begun[rank][KILLED_AT - 1][-1] == (3, undisturbed[rank][KILLED_AT - 1])
    for rank, steps in notes_of(tmp_path).items():
        assert steps[STEPS - 1] == [(3, undisturbed[rank][STEPS - 1])]


def test_shards_are_brought_back_at_any_world_size(keep: Keep, tmp_path: Path) -> None:
    skip_without("torch.distributed.fsdp:fully_shard")
    # Each round has another world size or another way to share the model than the one before, which was killed.
    rounds = [(3, True), (2, True), (3, True), (2, False), (3, True)]
    disk = tmp_path / "disk"
    resumed_at = []
    until = 0
    for number, (world_size, sharded) in enumerate(rounds, 1):
        until += 24
        last = number == len(rounds)
        kill = (-1, -1) if last else (1, until - 1)
        ways = {"sharded": sharded, "disk": disk if sharded else None}
        with workers(keep, train_sharded, world_size, number, tmp_path, until, kill, **ways) as started:
            started[1].join(TIMEOUT_S)
            if not sharded:
                keep.save(0)
                started[0].join(TIMEOUT_S)  # it notes its last step after that is kept
            assert started[1].exitcode == (0 if last else -signal.SIGKILL)
        resume = keep.choose()
        assert last or (resume.round, resume.world_size) == (number, world_size)
        resumed_at.append(resume.step)
    digests = notes_of(tmp_path)[0]
    for number, step in enumerate(resumed_at[:-1], 1):
        before, after = (dict(digests[step])[at] for at in (number, number + 1))
        assert before == after, (number, step)
    for rank, rounds_compared in enumerate((2, 2, 1)):  # what other ranks than this one saved, too
        counts = [line.split() for line in (tmp_path / f"{rank}.disk").read_text().splitlines()]
        assert len(counts) == rounds_compared
        assert all(present == equal and int(present) == TENSORS for present, equal in counts), counts
    assert resumed_at[3] >= 4 * 24 - 3  # the state of DDP is saved at the break, and the step before it was done


LONG_ROUND = 8
"""Steps are saved at an interval by then."""

COMPLETED = {"generator gradients", "generator optimizer", EVALUATING, "evaluated"}
"""The points from which on the others complete the step without the worker that was killed."""


def test_a_worker_killed_in_any_part_of_a_step_leaves_a_whole_one(keep: Keep, tmp_path: Path) -> None:
    """The worker of rank 1 dies in another part of a step in each round, at last within its evaluation."""
    world_size, steps = 2, (len(PARTS) + 2) * LONG_ROUND
    (calm := tmp_path / "calm").mkdir()
    undisturbed = train_undisturbed(calm, world_size, steps, train_adversaries)
    for number, point in enumerate((*PARTS, EVALUATING), 1):
        step = number * LONG_ROUND - 1 - (point == EVALUATING)
        with workers(keep, train_adversaries, world_size, number, tmp_path, steps, (1, step, point)) as started:
            started[1].join(TIMEOUT_S)
            [answer] = keep.save(0)
        assert keep.choose().step == (step if point in COMPLETED else step - 1), (point, answer)
    for kind in ("txt", "begins"):
        for rank, notes in notes_of(tmp_path, kind).items():
            for at, said in notes.items():
                assert at < 0 or {digest for _, digest in said} == {undisturbed[rank][at]}, (rank, at, said)
    play(keep, train_adversaries, world_size, len(PARTS) + 2, tmp_path, step + 2)
    # Nobody knows what rank 1 would have had at the end of that step: it has what it had before the evaluation.
    begun = notes_of(tmp_path, "begins")
    assert begun[0][step][-1][1] == undisturbed[0][step]
    chain, *own = begun[1][step][-1][1].split("-")
    assert chain == undisturbed[1][step].split("-")[0]
    assert own != undisturbed[1][step].split("-")[1:]
    last = {notes_of(tmp_path)[rank][step + 1][-1][1].split("-")[0] for rank in range(world_size)}
    assert len(last) == 1
