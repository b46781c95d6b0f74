"""GPU counts from directory trees that look like a host's, and from a library with NVML's functions."""

import os
from pathlib import Path

import pytest

from nodeclient.host.devices import Gpu, Host, WorkersPerNodeError, visible_gpus, workers_per_node
from tests.support.machines import compile_c, write
from tests.support.sick_gpus import NVML


@pytest.fixture
def bare(tmp_path: Path) -> Host:
    devices, system = tmp_path / "dev", tmp_path / "sys"
    devices.mkdir()
    system.mkdir()
    return Host(devices, system, str(tmp_path / "libnvidia-ml.so.1"), tmp_path / "proc")


@pytest.fixture
def nvidia(bare: Host) -> Host:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (bare.devices / name).touch()
    return bare


@pytest.fixture
def nvml(nvidia: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Make a host with twelve GPUs, the last of which has no UUID."""
    for name, value in {"GPUS": "12", "UUID": "GPU-%ldabc", "NO_UUID": "12"}.items():
        monkeypatch.setenv(f"TEST_{name}", value)
    compile_c(NVML, "-shared", "-fPIC", "-o", nvidia.nvml)
    return nvidia


@pytest.fixture
def amd(bare: Host) -> Host:
    nodes = bare.system / "class/kfd/kfd/topology/nodes"
    for number, (compute_units, uuid) in enumerate([(0, 0), (304, 0xA1), (304, 0xB2), (304, 0xB3)]):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(
            f"cpu_cores_count 0\nsimd_count {compute_units}\nunique_id {uuid}\n"
        )
    return bare


def test_gpus_without_nvml_are_in_the_order_of_their_numbers_with_the_driver_s_pci_addresses(nvidia: Host) -> None:
    write(nvidia.processes / "driver/nvidia/gpus/0000:17:00.0/information", "Model:\t\tH100\nDevice Minor: \t 1\n")
    known = {"nvidia1": "0000:17:00.0"}
    names = ("nvidia0", "nvidia1", "nvidia2", "nvidia10")
    assert visible_gpus({}, nvidia) == [Gpu(name, known.get(name)) for name in names]


def test_of_the_slices_of_a_gpu_one_is_seen_which_has_no_address(nvidia: Host) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, nvidia) == [Gpu("MIG-a", None)]


CUDA_LISTS = [
    ("0,1", 2),
    ("3", 1),
    (" 2 , 0", 2),
    ("", 0),
    ("-1", 0),
    ("0,-1,1", 1),
    ("0,9,1", 1),
    ("1,1", 0),
    ("none", 0),
    ("1gpu,2gpu", 2),
    ("+1", 1),
]


@pytest.mark.parametrize(("listed", "count"), CUDA_LISTS)
def test_cuda_visible_devices_is_read_as_cuda_does(nvidia: Host, listed: str, count: int) -> None:
    assert len(visible_gpus({"CUDA_VISIBLE_DEVICES": listed}, nvidia)) == count


UUID_LISTS = [
    ("GPU-2abc", 1),
    ("GPU-2", 1),
    ("GPU-11,GPU-2", 2),
    ("GPU-1", 0),
    ("GPU-2,GPU-12,GPU-3", 1),
    ("GPU-2,GPU-2abc", 0),
    ("0,11", 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("listed", "count"), UUID_LISTS)
def test_uuids_may_be_shortened_while_they_are_unique(nvml: Host, listed: str, count: int) -> None:
    assert len(visible_gpus({"CUDA_VISIBLE_DEVICES": listed}, nvml)) == count


@pytest.mark.slow
def test_where_nvml_fails_the_device_files_count(nvml: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_NVML_FAILS", "1")
    assert len(visible_gpus({}, nvml)) == 4


def test_without_nvml_uuids_are_believed_if_there_are_gpus(bare: Host) -> None:
    assert len(visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-5,GPU-6"}, bare)) == 0
    (bare.devices / "nvidia0").touch()
    assert len(visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-5,GPU-6"}, bare)) == 2


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 3),
        ({"HIP_VISIBLE_DEVICES": "0,2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "0,2"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000b2"}, 1),
        ({"HIP_VISIBLE_DEVICES": ""}, 0),
    ],
)
def test_amd_gpus_are_counted_without_their_cpus(amd: Host, environ: dict[str, str], count: int) -> None:
    assert len(visible_gpus(environ, amd)) == count


@pytest.mark.parametrize("spec", [None, ""])
def test_by_default_there_is_a_worker_for_each_gpu_or_one(bare: Host, amd: Host, spec: str | None) -> None:
    assert workers_per_node(spec, {}, amd) == 3
    assert workers_per_node(spec, {"HIP_VISIBLE_DEVICES": ""}, bare) == 1


def test_a_number_gpu_auto_and_cpu_mean_what_they_mean_for_torchrun(bare: Host, nvidia: Host) -> None:
    cpus = len(os.sched_getaffinity(0))
    assert workers_per_node("12", {}, bare) == 12
    assert workers_per_node("gpu", {}, nvidia) == 4
    assert workers_per_node("auto", {}, nvidia) == 4
    assert workers_per_node("auto", {"CUDA_VISIBLE_DEVICES": ""}, bare) == cpus
    assert workers_per_node("cpu", {}, nvidia) == cpus


@pytest.mark.parametrize("spec", ["0", "-1", "4097", "1.5", "two", "GPU", "²"])
def test_anything_else_is_refused(bare: Host, spec: str) -> None:
    with pytest.raises(WorkersPerNodeError, match="has to be a number from 1 to 4096, or gpu, cpu or auto"):
        workers_per_node(spec, {}, bare)


def test_gpu_without_one_says_what_hides_it(nvidia: Host) -> None:
    with pytest.raises(WorkersPerNodeError, match=r"offers no GPU \(the environment says CUDA_VISIBLE_DEVICES=''\)"):
        workers_per_node("gpu", {"CUDA_VISIBLE_DEVICES": ""}, nvidia)
