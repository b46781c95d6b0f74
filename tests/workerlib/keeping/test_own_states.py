"""Ranks whose plain tensors differ get their own ones back, and only at the same world size."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import workerlib
from tests.support.keeping import Keep, play
from tests.support.kept_places import held, small_bytes, whole
from tests.support.kept_training import digest_of
from workerlib.contract.arena import PENDING, Arena, ArenaSizes, Commit
from workerlib.contract.channel_messages import Part
from workerlib.keeping import intervals
from workerlib.keeping.generations import GenerationWriter
from workerlib.keeping.kept_errors import KeptStateError, UnfitStateError
from workerlib.keeping.kept_objects import adapt
from workerlib.keeping.restoring import RestorePoint, restore_objects
from workerlib.keeping.small_state import SmallStateWriter

pytestmark = pytest.mark.slow

STEPS = 8


def train(folder: Path, steps: int) -> None:
    """Train a model of this rank's own; note its state at the beginning and at the end, or why it cannot begin."""
    intervals.SHARE_MAX = 1e6  # each step is saved, however busy the machine is
    with workerlib.init() as ctx:
        torch.manual_seed(ctx.rank)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        notes = folder / f"{ctx.round}-{ctx.rank}"
        try:
            done = ctx.keep(model=model, optimizer=optimizer)
        except UnfitStateError as error:
            notes.write_text(str(error))
            return
        begun = digest_of(model.state_dict(), optimizer.state_dict()["state"])
        for step in range(done + 1, steps):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
            ctx.step(step)
        notes.write_text(f"{done} {begun} {digest_of(model.state_dict(), optimizer.state_dict()['state'])}")


def played(keep: Keep, folder: Path, world_size: int, round_: int, steps: int) -> list[str]:
    """Play a round to its end; return the notes of its ranks."""
    play(keep, train, world_size, round_, folder, steps)
    return [(folder / f"{round_}-{rank}").read_text() for rank in range(world_size)]


def test_each_rank_gets_its_own_state_back_and_no_other_number_of_ranks_does(keep: Keep, tmp_path: Path) -> None:
    keep.alike = False
    first = [text.split() for text in played(keep, tmp_path, 2, 1, STEPS)]
    assert keep.choose().step == STEPS - 1
    second = [text.split() for text in played(keep, tmp_path, 2, 2, 2 * STEPS)]
    assert [(done, begun) for done, begun, _ in second] == [(str(STEPS - 1), end) for _, _, end in first]
    assert first[0][2] != first[1][2]
    assert (keep.choose().round, keep.resume.step) == (2, 2 * STEPS - 1)
    words = f"each of 2 ranks had a state of its own at step {2 * STEPS - 1}, as the stages of a pipeline have"
    assert all(words in text for text in played(keep, tmp_path, 3, 3, STEPS))


def arena_with(sizes: ArenaSizes) -> Arena:
    file = os.memfd_create("arena")
    try:
        os.truncate(file, sizes.total)
        return Arena.create(file, sizes)
    finally:
        os.close(file)


def saved_by(rank: int, small: bytes | None) -> tuple[Part, Arena]:
    """Return what a rank has saved of a model of its own, perhaps without its small state."""
    model = nn.BatchNorm1d(2)
    tensors = whole({f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()})
    made = held(tensors, Commit(3, 1, 0, rank, 2, rank, 2, serial=1, flags=0), small)
    arena = arena_with(ArenaSizes.at_least(made.commit.length, 1))
    place = arena.begin_generation(made.commit.step)
    assert place is not None
    place.data[: made.commit.length] = made.place.data
    place.commit(made.commit)
    return Part(rank, big=True, small=small is not None, pending=False), arena


def test_a_rank_takes_no_small_state_of_another_stage() -> None:
    buffers = {f"model.{name}": buffer for name, buffer in nn.BatchNorm1d(2).named_buffers()}
    point = RestorePoint(1, 3, (saved_by(0, small_bytes(buffers, {})), saved_by(1, None)))
    assert point.is_per_rank
    with pytest.raises(KeptStateError, match="rank 1 had a state of its own at step 3, and its buffers and numbers"):
        restore_objects(point, adapt({"model": nn.BatchNorm1d(2)}), rank=1, world_size=2)


class Queue(nn.Module):
    """A layer with a queue, which changes after the optimizer's step."""

    queue: torch.Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("queue", torch.zeros(length))


def trained(rank: int, length: int, *, dies: bool) -> tuple[Part, Arena]:
    """Return what a rank has saved of the steps 0 to 3, if it dies within the last one."""
    model = Queue(length)
    objects, arena = adapt({"model": model}), arena_with(ArenaSizes.at_least(20_000, 20_000))
    small, generations = SmallStateWriter(objects), GenerationWriter(objects, 2)
    small.attach(arena)
    generations.attach(arena, print)
    small.first_snapshot({})
    for step in range(4):
        commit = Commit(step, 1, 0, rank, 2, 0, 1, serial=0, flags=0)
        assert small.write(small.pending_snapshot(at_optimizer=True), replace(commit, flags=PENDING))
        if dies and step == 3:
            break
        model.queue.add_(1)
        assert small.write(small.snapshot(), commit)
    else:
        generations.write(commit, small.find(commit))
    return Part(rank, big=not dies, small=not dies, pending=dies), arena


@pytest.mark.parametrize(("lengths", "steps"), [((2, 2), 4), ((2, 3), 3)])
def test_a_late_buffer_comes_from_another_rank_only_if_that_has_the_same_size(
    lengths: tuple[int, int], steps: int
) -> None:
    point = RestorePoint(1, 3, (trained(0, lengths[0], dies=False), trained(1, lengths[1], dies=True)))
    model = Queue(lengths[1])
    restore_objects(point, adapt({"model": model}), rank=1, world_size=2)
    assert model.queue.tolist() == [steps] * lengths[1]
