"""Memory for the state of one of a node's workers alone, with all real programs: whichever dies, no step is lost."""

import sys
from pathlib import Path

import pytest

from tests.support.cluster import cluster_of_its_own
from tests.support.kept_training import notes_of
from tests.support.undisturbed import STEPS, WORLD_SIZE

pytestmark = pytest.mark.slow

KILLED = {0: 5, 1: 9}
"""The step in which the worker of each rank is killed: one of the two has the memory."""


@pytest.mark.long
def test_a_worker_that_dies_leaves_its_memory_to_one_that_has_none(
    tmp_path: Path, undisturbed: dict[int, dict[int, str]]
) -> None:
    program = (sys.executable, "-m", "tests.support.kept_program", "ddp", str(tmp_path), str(STEPS))
    kills = [f"{number}:{rank}:{step}:backward" for number, (rank, step) in enumerate(KILLED.items(), start=1)]
    flags = ("--nproc-per-node", str(WORLD_SIZE), "--keep-memory", "600k", "--max-restarts", "2")
    with cluster_of_its_own("little") as cluster:
        node = cluster.join("a", *flags, "--preload", "torch,numpy", command=(*program, *kills))
        assert node.wait() == 0, node.output
    assert "is not kept: to keep three generations of a worker's state takes" in node.output
    for number, step in enumerate(KILLED.values(), start=2):
        assert f"round {number} resumes at step {step - 1} from memory, 0 steps redone" in node.output, node.output
    for rank, steps in notes_of(tmp_path).items():
        for step in range(STEPS):
            said = [digest for _, digest in steps.get(step, [])]
            assert said == [undisturbed[rank][step]], (rank, step, said)
