"""A worker, a node or a cable of three that share a GPU is lost: the others go on, with the right state."""

from pathlib import Path

import pytest

from tests.gpu.jobs import WARM, SharedGpu
from tests.support.cluster import Cluster
from tests.support.sites import Site

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("words", "flags", "stay"),
    [
        pytest.param(["anew"], (), 0, id="cold"),
        pytest.param(["anew"], WARM, 0, id="warm"),
        pytest.param(["kept"], WARM, 0, id="kept"),
        pytest.param(["kept", "--sharded"], WARM, 0, id="kept, FSDP2"),
        pytest.param(["in-place"], WARM, 2, id="in place"),
    ],
)
def test_a_worker_is_killed(shared_gpu: SharedGpu, words: list[str], flags: tuple[str, ...], stay: int) -> None:
    nodes = shared_gpu.join("abc", *words, "1:1:8:killed", flags=flags)
    assert [node.wait() for node in nodes] == [0, 0, 0]
    lost = shared_gpu.check_states(3)
    assert not lost or words == ["anew"] or "--sharded" in words
    assert shared_gpu.stayed() == stay


@pytest.mark.parametrize(("how", "stay"), [("kept", 0), ("in-place", 2)])
def test_a_node_is_killed(shared_gpu: SharedGpu, how: str, stay: int) -> None:
    nodes = shared_gpu.join("abc", how, "1:1:8:node", flags=WARM, nnodes="2:3")
    assert sorted(node.wait() for node in nodes) == [0, 0, 137]
    assert shared_gpu.check_states(2) == 0
    assert shared_gpu.stayed() == stay


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(("how", "stay"), [("kept", 0), ("in-place", 2)])
def test_a_cable_is_cut(tmp_path: Path, how: str, stay: int) -> None:
    with Site("abc", "--heartbeat", "0.4", "--settle", "10") as site:
        job = SharedGpu(site.join, tmp_path)
        nodes = job.join("abc", how, flags=(*WARM, "--interface", "eth0"), nnodes="2:3")
        for node in nodes:
            node.await_line("round 1 trains")
        site.hosts.cut("c")
        assert [node.wait() for node in nodes[:2]] == [0, 0]
    assert job.check_states(2) == 0
    assert job.stayed() == stay


def test_another_job_on_the_same_gpu_goes_on(cluster: Cluster, shared_gpu: SharedGpu, tmp_path: Path) -> None:
    """A process that fails leaves the others of its GPU alone, unless they share it by MPS."""
    with Cluster(cluster.coordinator, "other") as other:
        (tmp_path / "other").mkdir()
        others = SharedGpu(other.join, tmp_path / "other").join("xy", "kept", flags=WARM)
        nodes = shared_gpu.join("abc", "kept", "1:1:8:killed", flags=WARM)
        assert [node.wait() for node in nodes] == [0, 0, 0]
        assert shared_gpu.check_states(3) == 0
        assert other.await_state(state="running")["round"] == 1
        assert {node.process.poll() for node in others} == {None}
