"""A script that calls `torch.distributed.checkpoint` by itself goes on from memory, with all real programs."""

import sys
from pathlib import Path

import pytest

from tests.support.cluster import QUICK, cluster_of_its_own
from tests.support.kept_checkpoint import train_and_save
from tests.support.kept_training import notes_of
from tests.support.undisturbed import train_undisturbed

pytestmark = [pytest.mark.slow, pytest.mark.long]

WARM = ("--preload", "torch.distributed.checkpoint,numpy")

STEPS = 12

WORLD_SIZE = 2

SAVED = 7
"""The second step that is saved: so few find a place, however far the coordinator is."""

KILLED = 9
"""Rank 1 is killed in this step, which nobody completes."""


def test_a_script_with_torchs_checkpoints_goes_on_from_the_newest_one_in_memory(tmp_path: Path) -> None:
    calm, notes = tmp_path / "calm", tmp_path / "notes"
    calm.mkdir()
    notes.mkdir()
    undisturbed = train_undisturbed(calm, WORLD_SIZE, STEPS, train_and_save)
    kill = f"1:1:{KILLED}:forward"
    command = (sys.executable, "-m", "tests.support.kept_program", "dcp", str(notes), str(STEPS), kill)
    with cluster_of_its_own("kept", *QUICK) as cluster:
        nodes = [cluster.join(name, "--nnodes", "2", "--max-restarts", "1", *WARM, command=command) for name in "ab"]
        assert [node.wait() for node in nodes] == [0, 0]
    begins = notes_of(notes, "begins")
    for rank, steps in notes_of(notes).items():
        [(round_, begun)] = begins[rank][SAVED]
        assert (round_, begun) == (2, undisturbed[rank][SAVED]), f"rank {rank} begins with another state than it saved"
        for step in range(STEPS):
            # What was done after the save is lost with the worker, and done once more.
            times = 2 if SAVED < step < KILLED else 1
            assert [digest for _, digest in steps[step]] == [undisturbed[rank][step]] * times, (rank, step)
