"""Three workers share a GPU, and one of them, a node or a cable fails: the others go on, with the right state."""

import os
import sys
from pathlib import Path

import pytest

from tests.gpu.conftest import ON_CPU
from tests.gpu.jobs import WARM, SharedGpu
from tests.support.cluster import Cluster
from tests.support.flight_recorder import needs_flight_recorder
from tests.support.sites import Site

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("GPU_TESTS_KILLS", "3"))
"""More than some ten take longer than a minute on a GPU."""

SEED = os.environ.get("GPU_TESTS_SEED", "1")

needs_kernels = pytest.mark.skipif(ON_CPU, reason="a CPU has no kernels")

needs_recorder = pytest.mark.skipif(ON_CPU and needs_flight_recorder.args[0], **needs_flight_recorder.kwargs)


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
    shared_gpu.train(*words, "1:1:8:killed", flags=flags)
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
        shared_gpu.train("kept", "1:1:8:killed", flags=WARM)
        assert shared_gpu.check_states(3) == 0
        assert other.await_state(state="running")["round"] == 1
        assert {node.process.poll() for node in others} == {None}


@needs_recorder
@pytest.mark.parametrize(
    ("hang", "how", "named", "stay"),
    [
        pytest.param("stopped", "kept", "rank 1 on ", 0, id="stopped, kept"),
        pytest.param("stopped", "in-place", "rank 1 on ", 2, id="stopped, in place"),
        pytest.param("loop", "kept", "rank 1 on ", 0, id="in Python"),
        pytest.param("kernel", "kept", "rank 1 on ", 0, id="in a kernel", marks=needs_kernels),
        pytest.param("skip", "kept", "ranks 0, 1, 2 ", 0, id="a collective is skipped"),
    ],
)
def test_a_worker_hangs(shared_gpu: SharedGpu, hang: str, how: str, named: str, stay: int) -> None:
    node, *_ = shared_gpu.train(how, f"1:1:8:{hang}", flags=(*WARM, "--hang-timeout", "5"))
    assert f"round 1 hung: {named}" in node.output  # after a skipped one, collectives only do not match
    assert shared_gpu.check_states(3) == 0
    assert shared_gpu.stayed() == stay


@pytest.mark.parametrize("how", ["kept", "in-place"])
@pytest.mark.parametrize("sharding", [[], ["--sharded"]], ids=["DDP", "FSDP2"])
def test_the_state_is_right_after_each_kill(
    shared_gpu: SharedGpu, how: str, sharding: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = KILLS + 1
    words = (how, *sharding, "--rounds", str(rounds), "--seed", SEED)
    shared_gpu.train(*words, flags=WARM, restarts=KILLS)
    lost = shared_gpu.check_states(3, rounds)
    with capsys.disabled():
        sys.stdout.write(f"{KILLS} kills, seed {SEED}: 0 wrong states, {lost} steps lost\n")
    assert sharding or lost == 0
