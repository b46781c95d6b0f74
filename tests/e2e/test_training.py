"""Real training with gloo through what may happen to it; other tests cover what needs no torch."""

import signal

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
