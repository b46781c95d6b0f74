"""Looks for GPUs without touching CUDA in this process, and runs nodes whose workers use them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeclient.host.devices import Gpu, Host, visible_gpus
from tests.support.cluster import Cluster, cluster_of_its_own
from tests.support.programs import BIN, clean_environ, wait_until

if TYPE_CHECKING:
    from tests.gpu.jobs import SharedGpu

WORKER = Path(__file__).with_name("worker.py")

ON_CPU = os.environ.get("GPU_TESTS_ON_CPU") == "1"
"""Whether workers use gloo, and no GPU is needed: that shows whether the tests work."""

WITHIN_S = 150.0
"""nccl's first communicator on a cold machine takes a minute at worst."""

FREE_WITHIN_S = 10.0
"""The driver takes a moment to free the memory of a process that has ended."""

Run = Callable[..., list[dict[str, Any]]]


def memory_used_mib() -> int:
    """Return how much memory of all GPUs is used, by the driver's own tool."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    shown = subprocess.run(query, capture_output=True, text=True, check=True)
    return sum(map(int, shown.stdout.split()))


@pytest.fixture(scope="session")
def gpus() -> list[Gpu]:
    """Return the GPUs of this host in the order of nodeclient."""
    visible = visible_gpus(os.environ, Host())
    if not visible:
        pytest.skip("this host has no GPU that its driver tells of")
    shown = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"],
        capture_output=True,
        text=True,
        check=True,
    )
    if shown.stdout.strip() != "True":
        pytest.skip("this torch cannot use these GPUs: make setup TORCH=torch==2.13.0 installs the build for CUDA")
    return visible


@pytest.fixture
def run_node(gpus: list[Gpu]) -> Run:
    """Run `nodeclient join --standalone` with these flags; return the lines of its workers, by rank."""
    del gpus

    def run(*flags: str) -> list[dict[str, Any]]:
        command = (str(BIN / "nodeclient"), "join", "--standalone", *flags, "--", sys.executable, str(WORKER))
        ended = subprocess.run(
            command, env=clean_environ(), capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "workers start cold" not in ended.stderr, ended.stderr
        lines = [line[line.index("{") :] for line in ended.stdout.splitlines() if "{" in line]
        return sorted((json.loads(line) for line in lines), key=lambda said: int(said["rank"]))

    return run


@pytest.fixture
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that no memory of a GPU is held after a test that was not held before it."""
    if ON_CPU:
        yield
        return
    request.getfixturevalue("gpus")
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs nvidia-smi, which shows the memory that is held")
    before = memory_used_mib()
    yield
    wait_until("the memory of the GPUs to be free", lambda: memory_used_mib() <= before, FREE_WITHIN_S)


@pytest.fixture
def cluster(nothing_left: None) -> Iterator[Cluster]:
    """Return a job at a coordinator of its own, whose first round has all nodes, however late they come."""
    del nothing_left
    with cluster_of_its_own("shared", "--settle", "10") as cluster:
        yield cluster


@pytest.fixture
def shared_gpu(cluster: Cluster, tmp_path: Path) -> SharedGpu:
    """Return that job, with a folder for what workers note."""
    from tests.gpu.jobs import SharedGpu  # noqa: PLC0415 - imports torch, which the quick tests do without

    return SharedGpu(cluster.join, tmp_path)
