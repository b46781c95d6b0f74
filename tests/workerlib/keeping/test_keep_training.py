"""Workers that are killed at any point of a step cost none, and the training goes on as if nothing had happened."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import swa_utils

import workerlib
from tests.support.dying import die_within
from tests.support.keeping import Keep, play, workers
from tests.support.kept_training import POINTS, digest_of, digest_of_own, note_begin, notes_of, train_ddp, train_sharded
from tests.support.programs import TIMEOUT_S
from tests.support.torch_names import skip_without
from tests.support.undisturbed import train_undisturbed
from workerlib.contract.channel_messages import Reserve
from workerlib.keeping import intervals, keeper

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


FEATURES = 9

PARTS = (
    "first batch",
    "critic gradients",
    "generator forward",
    "generator gradients",
    "generator optimizer",
    "evaluated",
)
"""The points of a step at which a worker may be killed, and its own state of the step is known to the last bit."""

EVALUATING = "evaluating"
"""The point at which that state is not known: the others come to the end of the step, and this worker has never had a
state of its own there. Each even step has an evaluation."""


def train_adversaries(folder: Path, steps: int, kill: tuple[int, int, str] = (-1, -1, "")) -> None:
    """Train under DDP in steps of several parts; the worker of a rank may be killed in a step, at one of the points.

    There are two networks with an optimizer each, batches summed up, and an evaluation. So a step is not whole for most
    of its time. Both networks have dropout and batch norm, and the evaluation is made without gradients, but in the
    mode of training: it changes the state too.

    It notes what `train_ddp` does; a digest is that of the chain, of the buffers, and of all that is a rank's own.
    """
    intervals.SHARE_MAX = 1e6  # each step is saved, where steps are saved at an interval
    keeper.WAIT_S = 0.2
    with workerlib.init() as ctx:
        generator, critic = (DistributedDataParallel(_network(seed)) for seed in (7, 8))
        torch.manual_seed(ctx.rank)
        random.seed(ctx.rank)
        np.random.seed(ctx.rank)  # noqa: NPY002 - the legacy random numbers are what many scripts use
        average = swa_utils.AveragedModel(generator.module)  # counts its updates in a buffer
        makers = torch.optim.AdamW(generator.parameters(), lr=0.01)
        judges = torch.optim.SGD(critic.parameters(), lr=0.01, momentum=0.9)
        counters: dict[str, Any] = {"chain": ""}

        def at(point: str) -> None:
            if kill == (ctx.rank, step, point):
                os.kill(os.getpid(), signal.SIGKILL)

        kept = {"generator": generator, "critic": critic, "average": average, "makers": makers, "judges": judges}
        done = ctx.keep(**kept, counters=counters)
        makers.register_step_post_hook(lambda *_: at("generator optimizer"))
        both = nn.ModuleList([generator.module, critic.module])

        def own() -> str:
            return f"{digest_of(dict(both.named_buffers()))}-{digest_of_own(both)}"

        note_begin(folder, ctx, done, f"{counters['chain']}-{own()}")
        with (folder / f"{ctx.rank}.txt").open("a") as notes:
            for step in range(done + 1, steps):
                judges.zero_grad()
                with torch.no_grad():
                    made = generator(torch.randn(8, FEATURES))
                with critic.no_sync():
                    critic(made).mean().backward()
                at("first batch")
                (-critic(torch.randn(8, FEATURES) + 1).mean()).backward()
                at("critic gradients")
                judges.step()
                makers.zero_grad()
                made = generator(torch.randn(8, FEATURES))
                at("generator forward")
                (-critic.module(made).mean()).backward()
                at("generator gradients")
                makers.step()
                average.update_parameters(generator.module)
                if step % 2 == 0:
                    with torch.no_grad():
                        generator.module(torch.randn(8, FEATURES))
                        at(EVALUATING)
                        generator.module(torch.randn(8, FEATURES))
                at("evaluated")
                weights = [*both.parameters(), *average.module.parameters(), average.n_averaged]
                counters["chain"] = digest_of(
                    *(counters["chain"], weights, makers.state_dict()["state"], judges.state_dict()["state"])
                )
                noted = f"{ctx.round} {ctx.rank} {step} {counters['chain']}-{own()}\n"
                ctx.step(step)
                notes.write(noted)
                notes.flush()


def _network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.ReLU(), nn.Linear(12, FEATURES)
    )


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
