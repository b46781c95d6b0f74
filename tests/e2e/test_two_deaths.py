"""Two deaths in one round, with all real programs: all ranks go on from one step, and no step is done again."""

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Coordinator, Node
from tests.support.kept_training import notes_of
from tests.support.undisturbed import STEPS

pytestmark = pytest.mark.slow

WARM = ("--preload", "torch,numpy")

DIES_AT = 5

LAST = DIES_AT - 1
"""The last step that is done before the first death."""

LINES_OF_A_SAVE = 15
"""A survivor dies after so many lines of its save, before that is whole."""

RESUMES = re.compile(r": round \d+ resumes at step")

DYING_HOLDER = (sys.executable, "-m", "tests.support.dying_holder")


def train(cluster: Cluster, folder: Path, name: str, flags: tuple[str, ...], *kills: str, dies: bool = False) -> Node:
    """Start a node whose workers are killed at `ROUND:RANK:STEP:POINT`, and which may die while it sends."""
    program = (sys.executable, "-m", "tests.support.kept_program", "ddp", str(folder), str(STEPS))
    flags = (*flags, "--max-restarts", "2", *WARM)
    return cluster.join(name, *flags, command=(*program, *kills), prefix=DYING_HOLDER if dies else ())


def assert_no_step_is_lost(folder: Path, nodes: list[Node]) -> None:
    """Check that each node went on from the last step, and that all ranks were alike after each step, done once."""
    assert [node.wait() for node in nodes] == [0] * len(nodes)
    resumed = [line for node in nodes for line in node.lines if RESUMES.search(line)]
    assert all(f"resumes at step {LAST} from memory" in line for line in resumed)
    assert len(resumed) >= len(nodes)
    done: dict[int, set[str]] = {}
    for steps in notes_of(folder).values():
        for step, said in steps.items():
            done.setdefault(step, set()).update(f"{number}:{digest.split('-')[0]}" for number, digest in said)
    assert set(done) == set(range(STEPS))
    assert all(len(said) == 1 for said in done.values()), done


@pytest.mark.long
def test_two_workers_of_one_node_die(cluster: Cluster, notes: Path) -> None:
    kills = (f"1:0:{DIES_AT}:backward", f"1:1:{DIES_AT}:gradients")
    flags = ("--nnodes", "2", "--nproc-per-node", "2")
    nodes = [train(cluster, notes, name, flags, *kills) for name in "ab"]
    assert_no_step_is_lost(notes, nodes)


@pytest.mark.long
def test_a_survivor_dies_while_it_saves(cluster: Cluster, notes: Path) -> None:
    kills = (f"1:1:{DIES_AT}:backward", f"1:0:big save:{LINES_OF_A_SAVE}")
    nodes = [train(cluster, notes, name, ("--nnodes", "3", "--topology", name), *kills) for name in "abc"]
    assert_no_step_is_lost(notes, nodes)
    assert ["came from other nodes" in node.output for node in nodes] == [True, True, False], "rank 2 alone has saved"


@pytest.mark.long
def test_the_node_that_sends_its_state_to_that_of_a_dead_worker_dies(
    own_coordinator: Callable[..., Coordinator], notes: Path
) -> None:
    """Topology keys order the ranks. Of two holders, rank 1 gets its state from the one of rank 2."""
    with Cluster(own_coordinator("--settle", "3"), "two-deaths") as cluster:
        kill = f"1:1:{DIES_AT}:backward"
        nodes = [
            train(cluster, notes, name, ("--nnodes", "2:3", "--topology", name), kill, dies=name == "c")
            for name in "abc"
        ]
        assert nodes[2].wait() == 128 + signal.SIGKILL
        assert_no_step_is_lost(notes, nodes[:2])
