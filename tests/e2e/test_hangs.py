"""Real workers that hang are named and restarted by themselves, and a long evaluation is not."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import BIN, run

pytestmark = pytest.mark.slow

WORKER = """
import os, signal, sys, threading, time
import torch, workerlib
import torch.distributed as dist

def stopped(ctx):
    if ctx.rank == 1 and ctx.round == 1:
        os.kill(os.getpid(), signal.SIGSTOP)

def skipped(ctx):
    if ctx.rank == 1 and ctx.round == 1:
        dist.barrier()

def evaluates(ctx):
    if ctx.rank == 0:
        until = time.monotonic() + 16
        while time.monotonic() < until:
            pass

def named(ctx):
    with ctx.section("validation", limit=300):
        evaluates(ctx)

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
    done = run(BIN / "nodeclient", "events", cluster.job, "--coord", cluster.coordinator.endpoint, "--json")
    return [json.loads(line) for line in done.stdout.splitlines()]


def train(cluster: Cluster, kind: str, *flags: str) -> list[str]:
    """Let two nodes of one worker each train to their end; return what the first one has printed."""
    command = (sys.executable, "-W", "ignore", "-c", WORKER, kind)
    nodes = [cluster.join(name, *FLAGS, *flags, command=command) for name in "ab"]
    assert [node.wait() for node in nodes] == [0, 0]
    return nodes[0].lines


@pytest.mark.parametrize(
    ("kind", "hang", "sentence"),
    [
        ("stopped", "stuck", "rank 1 on node b is stopped for "),
        ("skipped", "mismatched", "rank 1 on node b waits in "),
    ],
)
def test_a_worker_that_hangs_is_named_and_its_round_restarted(
    cluster: Cluster, kind: str, hang: str, sentence: str
) -> None:
    # On a busy machine the slowest step is so slow that ten times as long is longer than a test may take.
    lines = "\n".join(train(cluster, kind, "--hang-timeout", "15"))
    assert "round 1 hung: rank 1 on " in lines
    reasons = [event["reason"] for event in events_of(cluster) if event["kind"] in {"RoundStopped", "RoundEnded"}]
    assert [reason.startswith(sentence) for reason in reasons] == [True, True]
    job = cluster.coordinator.job(cluster.job)
    assert job is not None
    assert (job["state"], job["restarts"]["used"]) == ("succeeded", 1)
    assert (job["failure"]["hang"], job["failure"]["message"]) == (hang, reasons[0])
    counted = f'coordinatord_rounds_total{{job_id="{cluster.job}",reason="hung"}} 1.0'
    assert counted in cluster.coordinator.fetch("/metrics")


@pytest.mark.parametrize(("kind", "noticed"), [("evaluates", True), ("named", False)])
def test_an_evaluation_of_one_rank_is_let_alone(cluster: Cluster, kind: str, *, noticed: bool) -> None:
    train(cluster, kind)
    reasons = {event["kind"]: event["reason"] for event in events_of(cluster)}
    assert "RoundStopped" not in reasons
    assert ("BusyWorkerAwaited" in reasons) == noticed, reasons
    job = cluster.coordinator.job(cluster.job)
    assert job is not None
    assert (job["state"], job["restarts"]["used"]) == ("succeeded", 0)
