"""Real workers that hang are named and restarted by themselves, a long evaluation is not, and late ones are named."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, Node
from tests.support.flight_recorder import needs_flight_recorder
from tests.support.programs import wait_until

pytestmark = [pytest.mark.slow, needs_flight_recorder]

WORKER = """
import atexit, os, signal, sys, threading
import torch, workerlib
import torch.distributed as dist

def stopped(ctx):
    if ctx.rank == 1 and ctx.round == 1:
        os.kill(os.getpid(), signal.SIGSTOP)

def skipped(ctx):
    if ctx.rank == 1 and ctx.round == 1:
        dist.barrier()

def unended(ctx):
    if ctx.rank == 1 and ctx.round == 1:
        atexit.register(threading.Event().wait)

def evaluates(ctx):
    if ctx.rank == 0:
        while not os.path.exists(sys.argv[2]):
            pass

torch.set_num_threads(1)
some, pause = torch.ones(8), threading.Event()
with workerlib.init() as ctx:
    for step in range(60):
        dist.all_reduce(some)
        ctx.step(step)
        pause.wait(0.05)
        if step == 40:
            globals()[sys.argv[1]](ctx)
"""

FLAGS = ("--nnodes", "2", "--max-restarts", "1")


def events_of(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the events of the job."""
    return list(cluster.coordinator.get(f"/v1/jobs/{cluster.job}/events")["events"])


def join(cluster: Cluster, *words: str, flags: Sequence[str] = ()) -> list[Node]:
    """Let two nodes of one worker each train."""
    command = (sys.executable, "-W", "ignore", "-c", WORKER, *words)
    return [cluster.join(name, *FLAGS, *flags, command=command) for name in "ab"]


def await_success(nodes: Sequence[Node]) -> list[str]:
    """Wait for the end of the training; return what the first node has printed."""
    codes = [node.wait() for node in nodes]
    assert codes == [0, 0], "\n".join(line for node in nodes for line in node.lines)
    return nodes[0].lines


@pytest.mark.parametrize(
    ("kind", "hang", "named", "sentence"),
    [
        ("stopped", "stuck", "rank 1 on ", "rank 1 on node b has been stopped by a signal for "),
        pytest.param(
            "skipped",
            "mismatched",
            "ranks 0, 1",
            "rank 0 on node a waits in all_reduce 42 and rank 1 on node b in barrier 42",
            marks=pytest.mark.long,
        ),
        pytest.param("unended", "stuck", "rank 1 on ", "rank 1 on node b stands", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_hangs_is_named_and_its_round_restarted(
    cluster: Cluster, kind: str, hang: str, named: str, sentence: str
) -> None:
    # On a busy machine the slowest step is so slow that ten times as long is longer than a test may take.
    lines = "\n".join(await_success(join(cluster, kind, flags=("--hang-timeout", "15"))))
    assert f"round 1 hung: {named}" in lines
    reasons = [event["reason"] for event in events_of(cluster) if event["kind"] in {"RoundStopped", "RoundEnded"}]
    assert [reason.startswith(sentence) for reason in reasons] == [True, True]
    job = cluster.coordinator.job(cluster.job)
    assert job is not None
    assert (job["state"], job["restarts"]["used"]) == ("succeeded", 1)
    assert (job["failure"]["hang"], job["failure"]["message"]) == (hang, reasons[0])
    counted = f'coordinatord_rounds_total{{job_id="{cluster.job}",reason="hung"}} 1.0'
    assert counted in cluster.coordinator.fetch("/metrics")


@pytest.mark.long
def test_an_evaluation_of_one_rank_is_let_alone(cluster: Cluster, tmp_path: Path) -> None:
    evaluated = tmp_path / "evaluated"
    nodes = join(cluster, "evaluates", str(evaluated))

    def kinds() -> set[str]:
        known = cluster.coordinator.job(cluster.job) is not None
        return {event["kind"] for event in events_of(cluster)} if known else set()

    # On a busy machine the slowest step may be slow, and ten times as long has to pass.
    wait_until("somebody to notice", lambda: "BusyWorkerAwaited" in kinds())
    evaluated.touch()
    await_success(nodes)
    assert "RoundStopped" not in kinds()
    job = cluster.coordinator.job(cluster.job)
    assert job is not None
    assert (job["state"], job["restarts"]["used"]) == ("succeeded", 0)


STEPS = 50
"""Nobody does any step more until the job is stopped, so what is found is found in these."""

LATE, LATE_S = 1, 0.2

# The late worker waits until the others have arrived. So it is the last one on the busiest machine too.
LATE_WORKER = f"""
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
    command = (sys.executable, "-W", "ignore", "-c", LATE_WORKER, str(tmp_path))
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
