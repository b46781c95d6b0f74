"""A node whose imports take long: it takes part from the start, is shown as preparing, and holds nobody up."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import WORKER, Cluster, Node
from tests.support.programs import BIN, run, wait_until

pytestmark = pytest.mark.slow

SLOW = """import os
with open(os.path.join(os.path.dirname(__file__), os.environ["NODECLIENT_NODE_ID"])) as gate:
    gate.read()  # until the test opens and closes the other end
"""

WELL_PAST_S = 1.0
"""More than the settle window of the coordinator of these tests, and than a heartbeat."""


class Gates:
    """Nodes whose imports last until the test ends them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        (folder / "slow.py").write_text(SLOW)

    def join(self, name: str, *flags: str) -> Node:
        """Start a node that prepares."""
        os.mkfifo(self._folder / name)
        environ = ("env", f"PYTHONPATH={self._folder}", f"NODECLIENT_NODE_ID={name}")
        command = (sys.executable, str(WORKER))
        return self._cluster.join(name, *flags, "--preload", "slow", command=command, prefix=environ)

    def open(self, name: str) -> None:
        """Let the import of a node end."""
        (self._folder / name).write_text("")


@pytest.fixture
def gates(cluster: Cluster, tmp_path: Path) -> Gates:
    return Gates(cluster, tmp_path)


def await_preparing(cluster: Cluster, name: str, least_s: float = 0.0) -> dict[str, Any]:
    """Wait until the coordinator shows that a node has prepared for so long; return its job."""

    def look() -> dict[str, Any] | None:
        job = cluster.coordinator.job(cluster.job)
        nodes = {} if job is None else {node["node"]: node for node in job["nodes"]}
        node = nodes.get(name, {"state": "", "reason": ""})
        found = re.fullmatch(r"imports the modules of --preload, for ([\d.]+) s so far", node["reason"])
        return job if found and node["state"] == "preparing" and float(found[1]) >= least_s else None

    return wait_until(f"{name} to prepare for {least_s:g} s", look)


def test_a_running_job_trains_on_until_a_newcomer_is_ready(cluster: Cluster, gates: Gates) -> None:
    a = cluster.join("a", "--nnodes", "1:2")
    before = cluster.await_round(1)
    gates.join("b", "--nnodes", "1:2")
    job = await_preparing(cluster, "b", WELL_PAST_S)
    assert (job["state"], job["round"]) == ("running", 1)
    assert [event["event"] for event in a.events] == ["started"], "nobody has asked its worker to save"
    gates.open("b")
    after = cluster.await_round(2, before)
    assert (after.number, after.nodes, after.restarts) == (2, ["a", "b"], {0})


def test_nodes_that_prepare_for_the_first_round_are_shown_and_start_together(cluster: Cluster, gates: Gates) -> None:
    nodes = [gates.join(name, "--nnodes", "2:3") for name in "ab"]
    job = {name: await_preparing(cluster, name, WELL_PAST_S) for name in "ab"}["b"]
    assert (job["state"], job["round"]) == ("forming", 0)
    assert re.fullmatch("2 joined, at least 2 needed; preparing: nodes (a, b|b, a)", job["reason"])
    shown = run(BIN / "nodeclient", "status", cluster.job, "--coord", cluster.coordinator.endpoint).stdout
    assert re.search(r" b .* preparing +- .* imports the modules of --preload, for \S+ s so far", shown)
    for node in nodes:
        node.await_line("connected to the coordinator")
        assert not any("preloaded" in line for line in node.lines)
    gates.open("a")
    gates.open("b")
    round_ = cluster.await_round(2)
    assert round_.number == 1
    round_.finish()
    assert [node.wait() for node in nodes] == [0, 0]


def test_a_node_that_is_ended_while_it_prepares_leaves_nothing(cluster: Cluster, gates: Gates) -> None:
    node = gates.join("a", "--nnodes", "1")
    await_preparing(cluster, "a")
    assert node.stop() == 143
    node.await_no_leftovers()
    assert cluster.await_state()["state"] == "left"
