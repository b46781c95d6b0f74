"""nccl at the world sizes that the GPUs allow, and CUDA in workers that start warm."""

import sys

import pytest

from nodeclient.host.devices import Gpu
from tests.gpu.conftest import Run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("flags", [(), ("--preload", "torch")], ids=["cold", "warm"])
def test_nccl_sums_over_every_world_size_that_the_gpus_allow(
    flags: tuple[str, ...], gpus: list[Gpu], run_node: Run
) -> None:
    world = 1
    while world <= len(gpus):
        said = run_node("--nproc-per-node", str(world), *flags)
        assert [worker["rank"] for worker in said] == list(range(world))
        assert {worker["sum"] for worker in said} == {float(world)}
        assert all("nccl" in worker["backend"] for worker in said)
        world *= 2


def test_a_warm_worker_is_forked_before_cuda_is_initialized(run_node: Run) -> None:
    [said] = run_node("--nproc-per-node", "1", "--preload", "torch")
    assert said["cuda_before_init"] is False


def test_a_warm_worker_s_first_step_is_earlier_than_a_cold_one_s(
    run_node: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    [cold] = run_node("--nproc-per-node", "1")
    [warm] = run_node("--nproc-per-node", "1", "--preload", "torch")
    text = "from the program's beginning to the first CUDA step: cold {:.2f} s, warm {:.2f} s\n"
    with capsys.disabled():
        sys.stdout.write(text.format(cold["first_step_s"], warm["first_step_s"]))
    assert warm["first_step_s"] < cold["first_step_s"]
