"""A real worker that comes late to each collective is named, and how late it is."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.flight_recorder import needs_flight_recorder
from tests.support.programs import wait_until

pytestmark = [pytest.mark.slow, needs_flight_recorder]

STEPS = 50
"""Nobody does any step more until the job is stopped, so what is found is found in these."""

LATE, LATE_S = 1, 0.2

# The late worker waits until the others have arrived. So it is the last one on the busiest machine too.
WORKER = f"""
import os, sys, threading
import torch, workerlib
import torch.distributed as dist

def has_come(rank, step):
    return f"{{sys.argv[1]}}/{{rank}}-{{step}}"

torch.set_num_threads(1)
some, pause = torch.ones(8), threading.Event()
with workerlib.init() as ctx:
    for step in range({STEPS}):
        if ctx.rank == {LATE}:
            others = [has_come(rank, step) for rank in range(ctx.world_size) if rank != {LATE}]
            while not all(map(os.path.exists, others)):
                pause.wait(0.001)
            pause.wait({LATE_S})
        work = dist.all_reduce(some, async_op=True)
        open(has_come(ctx.rank, step), "w").close()
        work.wait()
        ctx.step(step)
    with ctx.section("the end", limit=3600):
        pause.wait()
"""


def test_a_worker_that_comes_last_to_collectives_is_named_within_50_steps(cluster: Cluster, tmp_path: Path) -> None:
    command = (sys.executable, "-W", "ignore", "-c", WORKER, str(tmp_path))
    nodes = [
        cluster.join(
            name, "--nnodes", "2", "--nproc-per-node", workers, "--preload", "torch.distributed", command=command
        )
        for name, workers in (("a", "2"), ("b", "1"))
    ]
    coordinator = cluster.coordinator

    def named() -> dict[str, Any] | None:
        job = coordinator.job(cluster.job)
        return None if job is None or job["laggard"] is None else job

    job = wait_until("a laggard", named)  # a second look, if the first was too vague, comes 30 s later
    laggard = job["laggard"]
    assert (laggard["rank"], laggard["node"]) == (LATE, "a")
    assert laggard["last"] > 0.9
    assert laggard["late_s"] >= 0.9 * LATE_S, "the clocks of nodes on one host are the same"
    assert job["nodes"][0]["late"]["rank"] == LATE
    assert "  rank 1 on node a is last in " in cluster.operate("status")
    assert f'coordinatord_job_laggard_seconds{{job_id="{cluster.job}"}} ' in coordinator.fetch("/metrics")
    cluster.operate("stop", cluster.job)
    for node in nodes:
        node.wait()
