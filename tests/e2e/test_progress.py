"""The steps of real workers, from `workerlib.step` to what `nodeclient status` shows."""

import json
import signal
import sys
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import BIN, kill_quietly, run, wait_until

pytestmark = pytest.mark.slow

WORKER = """
import json, os, signal, workerlib
base = 100 * int(os.environ["COORDINATORD_ROUND"])
workerlib.step(base + int(os.environ["RANK"]))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
facts = {"pid": os.getpid(), "rank": int(os.environ["RANK"]), "round": base // 100}
print(json.dumps({"event": "waits", **facts}), flush=True)
signal.sigwait({signal.SIGUSR1})
workerlib.step(base + 50)
"""
"""Reports a step that has its round and its rank; at SIGUSR1 it reports another one and succeeds."""

COMMAND = (sys.executable, "-c", WORKER)


def status(cluster: Cluster) -> dict[str, Any]:
    """Return what `nodeclient status` shows of the job."""
    coord = cluster.coordinator.endpoint
    [job] = json.loads(run(BIN / "nodeclient", "status", cluster.job, "--coord", coord, "--json").stdout)["jobs"]
    return dict(job)


def steps_of(job: dict[str, Any] | None) -> dict[str, list[int | None]]:
    """Return the steps of each node of a job that there may be."""
    return {} if job is None else {node["node"]: node["steps"] for node in job["nodes"]}


def await_steps(cluster: Cluster, **steps: list[int | None]) -> dict[str, Any]:
    """Wait until these are the steps of each node; return what status shows then."""
    coordinator = cluster.coordinator
    wait_until(f"steps {steps}", lambda: steps_of(coordinator.job(cluster.job)) == steps)
    job = status(cluster)
    assert steps_of(job) == steps
    return job


def test_status_shows_the_step_of_every_rank_in_every_round_and_where_the_run_ended(cluster: Cluster) -> None:
    flags = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "1")
    a = cluster.join("a", *flags, "--preload", "workerlib", command=COMMAND)
    b = cluster.join("b", *flags, "--virtual-local-rank", command=COMMAND)
    job = await_steps(cluster, a=[100, 101], b=[102, 103])
    assert (job["progress"]["step"], job["progress"]["steps_per_s"]) == (100, None)
    assert all(node["step_age_s"] >= 0 for node in job["nodes"])
    kill_quietly(a.await_event("waits", rank=1)["pid"])
    assert await_steps(cluster, a=[200, 201], b=[202, 203])["progress"]["step"] == 200
    for node, ranks in ((a, (0, 1)), (b, (2, 3))):
        for rank in ranks:
            kill_quietly(node.await_event("waits", rank=rank, round=2)["pid"], signal.SIGUSR1)
    assert (a.wait(), b.wait()) == (0, 0)
    job = status(cluster)
    assert (job["state"], job["progress"]["step"], job["progress"]["steps_per_s"]) == ("succeeded", 250, None)
