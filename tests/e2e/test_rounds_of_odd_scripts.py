"""Scripts of rounds that hold more than a model, or misbehave, go on where they can, else in a new process."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, cluster_of_its_own
from tests.support.programs import wait_until

pytestmark = pytest.mark.slow

PATIENT = ("--preload", "torch", "--abort-timeout", "60")
"""A worker may take longer than half a second to leave its round, on a busy machine."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Return a job at a coordinator of its own."""
    with cluster_of_its_own("odd") as cluster:
        yield cluster


def command(kind: str, folder: Path) -> tuple[str, ...]:
    """Return the command of workers."""
    return (sys.executable, "-m", "tests.support.rounds_of_odd_scripts", kind, str(folder))


def await_notes(cluster: Cluster, folder: Path, least: int, workers: int) -> list[dict[str, Any]]:
    """Wait until so many workers have noted a round from `least` on; return their notes.

    A node that a busy machine keeps silent for its lease costs its job a round.
    """

    def look() -> list[dict[str, Any]] | None:
        assert {node.process.poll() for node in cluster.nodes} <= {None, INTERRUPTED}
        texts = [file.read_text() for file in folder.glob("*.json")]
        notes = [json.loads(text) for text in texts if text.endswith("}")]
        for number in sorted({note["round"] for note in notes if note["round"] >= least}):
            noted = [note for note in notes if note["round"] == number]
            if len(noted) == workers:
                return noted
        return None

    return wait_until(f"a round of {workers} workers from round {least} on", look)


@pytest.mark.long
def test_a_sharded_model_goes_on_in_a_new_process_and_status_says_why(cluster: Cluster, tmp_path: Path) -> None:
    cluster.join("a", "--nnodes", "1", *PATIENT, command=command("sharded", tmp_path))
    [first] = await_notes(cluster, tmp_path, 1, workers=1)
    cluster.operate("restart", cluster.job)
    [second] = await_notes(cluster, tmp_path, 2, workers=1)
    assert second["pid"] != first["pid"]
    assert second["step"] > first["step"], "its state was kept"
    begun = cluster.await_state(round=2)["begun"]
    assert (begun["in_place"], begun["warm"], begun["cold"]) == (0, 1, 0)
    assert begun["why_not"] == "node a: parameters are sharded, and bound to the process group of this round"


@pytest.mark.long
def test_a_loader_lives_across_rounds_and_compiled_code_knows_of_the_new_one(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--nnodes", "1:2", *PATIENT)
    node = cluster.join("a", *flags, command=command("living", tmp_path))
    [alone] = await_notes(cluster, tmp_path, 1, workers=1)
    cluster.join("b", *flags, command=command("living", tmp_path))
    both = await_notes(cluster, tmp_path, 2, workers=2)
    [stayed] = [worker for worker in both if worker["pid"] == alone["pid"]]
    assert (alone["scaled"], stayed["scaled"]) == (1, 2)
    assert stayed["maker"] == alone["maker"], "another process makes the samples"
    assert stayed["samples"] == [sample + 4 for sample in alone["samples"]]
    made_ahead = 4 * 2  # by `prefetch_factor`
    node.await_line(f"made {stayed['samples'][0] + made_ahead}")


def test_a_thread_and_connections_of_the_script_are_untouched_by_a_new_round(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--nnodes", "1", "--nproc-per-node", "2", *PATIENT)
    cluster.join("a", *flags, command=command("connected", tmp_path))
    first = await_notes(cluster, tmp_path, 1, workers=2)
    cluster.operate("restart", cluster.job)
    second = await_notes(cluster, tmp_path, 2, workers=2)
    for worker in second:
        [before] = [earlier for earlier in first if earlier["pid"] == worker["pid"]]
        assert (worker["answer"], worker["rounds"]) == ("!", 2)
        assert worker["thread"] == before["thread"]


INTERRUPTED = 128 + signal.SIGINT


def test_ctrl_c_at_a_node_ends_that_node_and_the_worker_of_the_other_one_stays(
    cluster: Cluster, tmp_path: Path
) -> None:
    flags = ("--nnodes", "1:2", *PATIENT)
    cluster.join("a", *flags, command=command("plain", tmp_path))
    [alone] = await_notes(cluster, tmp_path, 1, workers=1)
    there = cluster.join("b", *flags, command=command("plain", tmp_path))
    both = await_notes(cluster, tmp_path, 2, workers=2)
    [before] = [worker for worker in both if worker["pid"] == alone["pid"]]
    os.killpg(there.pid, signal.SIGINT)  # a terminal sends it to all that are in the foreground
    assert there.wait() == INTERRUPTED
    assert there.leftovers() == []
    [left] = await_notes(cluster, tmp_path, before["round"] + 1, workers=1)
    assert left["pid"] == alone["pid"]
    assert left["step"] > before["step"], "its state stays"
    assert cluster.await_state(state="running")["restarts"]["used"] == 0


LATE = "a worker was not out of its round in time; see --abort-timeout"


@pytest.mark.parametrize(
    ("kind", "within_s", "why"),
    [
        ("deaf", "1", LATE),
        pytest.param("native", "1", LATE, marks=pytest.mark.long),
        # The node has to hear in this time that the worker has begun.
        ("aborting", "4", "aborting NCCL took longer than 4 s; see --abort-timeout"),
    ],
)
def test_a_worker_that_does_not_leave_its_round_is_replaced_and_status_says_why(
    cluster: Cluster, tmp_path: Path, kind: str, within_s: str, why: str
) -> None:
    flags = ("--nnodes", "1", "--preload", "torch", "--abort-timeout", within_s, "--stop-timeout", "1")
    cluster.join("a", *flags, command=command(kind, tmp_path))
    [first] = await_notes(cluster, tmp_path, 1, workers=1)
    cluster.operate("restart", cluster.job)
    [second] = await_notes(cluster, tmp_path, 2, workers=1)
    assert second["pid"] != first["pid"]
    begun = cluster.await_state(round=2)["begun"]
    assert (begun["in_place"], begun["warm"], begun["cold"]) == (0, 1, 0)
    assert begun["why_not"] == f"node a: {why}"
