"""Which GPUs there are, and which worker gets which; nccl on them, and CUDA in workers that start warm."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from nodeclient.host.devices import Gpu, Host, workers_per_node
from tests.gpu.conftest import Run

pytestmark = pytest.mark.slow


SEEN_BY_TORCH = """
import json, torch
found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
print(json.dumps([str(getattr(gpu, "uuid", "")) for gpu in found]))
"""


def mig_modes() -> str:
    """Return how the GPUs are partitioned, as the driver's own tool shows it."""
    query = ["nvidia-smi", "--query-gpu=uuid,mig.mode.current", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout


def test_torch_sees_the_same_gpus_in_the_same_order(gpus: list[Gpu]) -> None:
    shown = subprocess.run([sys.executable, "-c", SEEN_BY_TORCH], capture_output=True, text=True, check=True)
    uuids = json.loads(shown.stdout)
    assert len(uuids) == len(gpus)
    if not all(uuids):
        pytest.skip("this torch does not tell the UUID of a GPU")
    assert [gpu.name.removeprefix("GPU-") for gpu in gpus] == uuids


def test_gpu_and_auto_mean_one_worker_for_each(gpus: list[Gpu]) -> None:
    for spec in ("gpu", "auto", None):
        assert workers_per_node(spec, os.environ, Host()) == len(gpus)


def test_every_gpu_is_a_pci_device_that_the_kernel_knows(gpus: list[Gpu]) -> None:
    for gpu in gpus:
        if not gpu.name.startswith("MIG-"):
            assert gpu.pci_address is not None
            assert (Host().system / "bus/pci/devices" / gpu.pci_address).exists()


def test_with_a_virtual_local_rank_each_worker_sees_its_own_gpu_alone(gpus: list[Gpu], run_node: Run) -> None:
    said = run_node("--nproc-per-node", "gpu", "--virtual-local-rank")
    assert [worker["local_rank"] for worker in said] == [0] * len(gpus)
    assert {worker["devices"] for worker in said} == {1}
    assert len({worker["uuid"] for worker in said}) == len(gpus)


def test_how_gpus_are_partitioned_stays_as_it_is(run_node: Run) -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs nvidia-smi")
    before = mig_modes()
    run_node("--nproc-per-node", "1", "--preload", "torch")
    assert mig_modes() == before


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
