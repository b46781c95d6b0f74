"""SIGINT in rounds in place: Ctrl-C at a node ends that node alone, and an interrupted worker is replaced."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, Node, cluster_of_its_own
from tests.support.programs import wait_until

pytestmark = pytest.mark.slow

PATIENT = ("--preload", "torch", "--abort-timeout", "60")
"""A worker may take longer than half a second to leave its round, on a busy machine."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Return a job at a coordinator of its own."""
    with cluster_of_its_own("interrupted") as cluster:
        yield cluster


def join(cluster: Cluster, folder: Path, name: str, *flags: str) -> Node:
    """Start a node whose worker notes its rounds."""
    command = (sys.executable, "-m", "tests.support.rounds_of_odd_scripts", "plain", str(folder))
    return cluster.join(name, *flags, *PATIENT, command=command)


def await_trained(folder: Path, workers: int, *nodes: Node, after: int = 0) -> tuple[int, dict[int, int]]:
    """Wait until so many workers have noted a round after this one; return it, and the first step of each process.

    Fails if one of these nodes ends.
    """

    def look() -> tuple[int, dict[int, int]] | None:
        assert all(node.process.poll() is None for node in nodes), [node.output for node in nodes]
        texts = [file.read_text() for file in folder.glob("*.json")]
        notes: list[dict[str, Any]] = [json.loads(text) for text in texts if text.endswith("}")]
        for round_ in sorted({note["round"] for note in notes if note["round"] > after}):
            found = {note["pid"]: note["step"] for note in notes if note["round"] == round_}
            if len(found) == workers:
                return round_, found
        return None

    return wait_until(f"a round of {workers} workers after round {after}", look)


def test_ctrl_c_at_a_node_ends_that_node_and_the_worker_of_the_other_one_stays(
    cluster: Cluster, tmp_path: Path
) -> None:
    here = join(cluster, tmp_path, "a", "--nnodes", "1:2")
    first, alone = await_trained(tmp_path, 1, here)
    there = join(cluster, tmp_path, "b", "--nnodes", "1:2")
    second, both = await_trained(tmp_path, 2, here, there, after=first)
    assert both.keys() > alone.keys(), here.output
    os.killpg(there.pid, signal.SIGINT)  # a terminal sends it to all that are in the foreground
    assert there.wait() == 130, there.output
    assert there.leftovers() == [], there.output
    _, left = await_trained(tmp_path, 1, here, after=second)
    [(pid, step)] = left.items()
    assert pid in alone, "it stays"
    assert step > both[pid], "its state stays"
    assert cluster.await_state(state="running")["restarts"]["used"] == 0


@pytest.mark.long
def test_an_interrupted_worker_is_replaced_and_the_other_one_stays(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--nnodes", "2", "--max-restarts", "1")
    nodes = [join(cluster, tmp_path, name, *flags) for name in "ab"]
    first, before = await_trained(tmp_path, 2, *nodes)
    stays, interrupted = sorted(before)
    os.kill(interrupted, signal.SIGINT)
    _, after = await_trained(tmp_path, 2, *nodes, after=first)
    assert stays in after, [node.output for node in nodes]
    assert interrupted not in after, "KeyboardInterrupt ends a script"
    assert len(set(after.values())) == 1, "all go on from one state"
    job = cluster.await_state(state="running")
    assert (job["begun"]["in_place"], job["begun"]["warm"], job["begun"]["cold"]) == (1, 1, 0)
    assert job["restarts"]["used"] == 1
