"""Real training with gloo through what may happen to it; other tests cover what needs no torch."""

import signal
import sys
from pathlib import Path

import pytest

from tests.support.cluster import TRAINING, Cluster
from tests.support.programs import kill_quietly

pytestmark = pytest.mark.slow

WARM = ("--preload", "torch.distributed")
"""Flags where nodes have several rounds: each of them imports torch once, which takes two seconds. Others start
cold."""


def test_training_goes_on_after_a_lost_node_for_free_and_after_a_killed_worker_for_one_restart(
    cluster: Cluster,
) -> None:
    flags = ("--nnodes", "2:3", "--max-restarts", "1", *WARM)
    a, b, c = (cluster.join(name, *flags, command=TRAINING) for name in "abc")
    begun = a.await_event("sum", sum=3)["round"]

    c.process.kill()
    a.await_event("sum", sum=2, round=begun + 1)
    assert cluster.await_state(round=begun + 1)["restarts"] == {"used": 0, "max": 1, "window_s": None}
    victim = b.await_event("sum", sum=2, round=begun + 1)

    kill_quietly(victim["pid"])
    rank_0 = next(event for node in (a, b) if (event := node.await_event("sum", sum=2, round=begun + 2))["rank"] == 0)
    assert cluster.await_state(round=begun + 2)["restarts"] == {"used": 1, "max": 1, "window_s": None}

    kill_quietly(rank_0["pid"], signal.SIGUSR1)
    assert (a.wait(), b.wait()) == (0, 0)


EVALUATES = """
import sys, time
from pathlib import Path
import workerlib
with workerlib.init():
    workerlib.step(1)
print("trained", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


def test_a_node_that_is_asked_to_leave_after_the_training_lets_its_workers_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    command = (sys.executable, "-c", EVALUATES, str(tmp_path / "enough"))
    nodes = [cluster.join(name, "--nnodes", "2", "--stop-timeout", "1000", command=command) for name in "ab"]
    for node in nodes:
        node.await_line("trained")
    nodes[0].signal(signal.SIGTERM)
    nodes[0].await_line("SIGTERM: leaving in 500 s, unless the job succeeds before, since its training is over")
    (tmp_path / "enough").touch()
    assert [node.wait() for node in nodes] == [0, 0]
    assert cluster.await_state(state="succeeded")["round"] == 1
