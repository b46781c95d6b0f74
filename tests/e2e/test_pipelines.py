"""Pipelines whose stages are plain modules: a rank that is killed gets back the state of its own stage."""

import sys
from pathlib import Path

import pytest

from tests.support.cluster import cluster_of_its_own
from tests.support.pipeline_program import POINTS

pytestmark = [pytest.mark.slow, pytest.mark.long]


def train(kind: str, folder: Path, *kills: str) -> tuple[dict[str, str], str]:
    """Train a pipeline; return the state of each rank at the end, and what its node has written."""
    folder.mkdir()
    script = (sys.executable, "-m", "tests.support.pipeline_program", kind, str(folder), *kills)
    with cluster_of_its_own("pipeline") as cluster:
        flags = ("--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", str(len(kills)), "--preload", "torch")
        node = cluster.join("a", *flags, command=script)
        assert node.wait() == 0
    return {rank: (folder / rank).read_text() for rank in "01"}, node.output


@pytest.mark.parametrize("kind", ["alike", "named"])
def test_each_stage_comes_back_to_its_rank_wherever_one_is_killed(kind: str, tmp_path: Path) -> None:
    kills = [f"{number}:{number % 2}:{10 * number}:{point}" for number, point in enumerate(POINTS, start=1)]
    undisturbed, _ = train(kind, tmp_path / "undisturbed")
    states, output = train(kind, tmp_path / "killed", *kills)
    assert states == undisturbed, output
    assert output.count("from memory") >= len(kills) - 1, output
