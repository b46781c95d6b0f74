"""Ranks whose states differ, where all should have the same, are named, and no rank resumes from these."""

import sys
from pathlib import Path

import pytest

from tests.support.cluster import cluster_of_its_own
from tests.support.different_states import SPOILED_AT

pytestmark = pytest.mark.slow


def test_no_rank_resumes_from_a_step_of_which_two_ranks_have_different_states(tmp_path: Path) -> None:
    script = (sys.executable, "-m", "tests.support.different_states", str(tmp_path))
    with cluster_of_its_own("different") as cluster:
        flags = ("--nnodes", "1", "--nproc-per-node", "3", "--max-restarts", "1", "--preload", "torch")
        node = cluster.join("a", *flags, command=script)
        assert node.wait() == 0
    words = f"step {SPOILED_AT} is not used: rank 0 on node a and rank 1 on node a should have the same state of it"
    assert words in node.output
    begun = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert len(begun) == 6
    assert len({*begun.values()}) == 1, "all ranks of both rounds begin anew, and with the same weights"


def test_a_rank_that_comes_to_have_another_state_is_named_and_all_go_back_behind_that(tmp_path: Path) -> None:
    script = (sys.executable, "-m", "tests.support.different_states", str(tmp_path), "on")
    with cluster_of_its_own("diverges") as cluster:
        flags = ("--nnodes", "1", "--nproc-per-node", "3", "--max-restarts", "2", "--preload", "torch")
        node = cluster.join("a", *flags, "--on-divergence", "restart", command=script)
        assert node.wait() == 0
    assert "rank 1 on node a has other parameters or optimizer state than 2 ranks that should have" in node.output
    assert "round 2 diverged: replicas are not alike" in node.output
    begun = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert len(begun) == 9
    assert begun["1-0"] != begun["2-0"], "round 2 resumes"
    assert len({text for name, text in begun.items() if not name.startswith("1-")}) == 1, "and round 3 from the same"
