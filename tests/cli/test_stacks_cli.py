"""`nodeclient stacks`: where real workers stand, of a script that never heard of workerlib and of one that did."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import BIN, run, wait_until

pytestmark = pytest.mark.slow

SCRIPT = """
import os, threading
def load():
    threading.Event().wait()
def train():
    threading.Event().wait()
if os.environ["RANK"] == "1":
    load()
train()
"""


def stacks(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    ended = run(BIN / "nodeclient", "stacks", "--coord", cluster.coordinator.endpoint, cluster.job, *arguments)
    return ended.returncode, ended.stdout or ended.stderr


def groups(cluster: Cluster) -> list[dict[str, Any]]:
    code, text = stacks(cluster, "--json")
    return list(json.loads(text)["groups"]) if code == 0 else []


@pytest.mark.parametrize(("flags", "imports"), [(("--preload", "json"), ""), ((), "import workerlib")])
def test_the_workers_that_stand_alike_are_shown_once(cluster: Cluster, flags: tuple[str, ...], imports: str) -> None:
    command = (sys.executable, "-c", imports + SCRIPT)
    for name in "ab":
        cluster.join(name, "--nnodes", "2", "--nproc-per-node", "2", *flags, command=command)

    def is_shown() -> bool:
        return [len(group["workers"]) for group in groups(cluster) if group["threads"]] == [3, 1]

    wait_until("all workers stand", is_shown)
    code, text = stacks(cluster)
    assert code == 0
    first, second = text.split("\n\n")[1:3]
    assert first.startswith("ranks 0, 2-3 on ")
    assert "    train (<string>:" in first
    assert second.startswith("rank 1 on ")
    assert "    load (<string>:" in second
    assert "1 worker at 1 place" in stacks(cluster, "--rank", "1")[1]
    assert "round 1 has no such rank: it has ranks 0 to 3" in stacks(cluster, "--rank", "9")[1]
