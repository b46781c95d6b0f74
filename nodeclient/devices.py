"""Counts what this host can give to workers, without torch: GPUs as its libraries see them, and CPUs.

How many workers that makes is `workers_per_node`; which worker gets which GPU is the business of the worker.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coordinatord.wire.messages import WORKERS_MAX

_UUID_BYTES = 96
"""NVML_DEVICE_UUID_V2_BUFFER_SIZE in nvml.h."""

_INTEGER = re.compile(r"[+-]?\d+")


class WorkersPerNodeError(ValueError):
    """`--nproc-per-node` is none of what it may be, or asks for GPUs where there are none."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where the kernel and the driver describe the devices."""

    devices: Path = Path("/dev")
    system: Path = Path("/sys")
    nvml: str = "libnvidia-ml.so.1"
    """NVIDIA's management library, which comes with the driver."""


def workers_per_node(spec: str | None, environ: Mapping[str, str], host: Host | None = None) -> int:
    """Return how many workers `--nproc-per-node` means here: a number, `gpu`, `cpu` or `auto`.

    `gpu` is one for each GPU, and an error without any; `cpu` one for each CPU that this process may run on (torchrun
    counts all of the host's); `auto` is `gpu` where there are GPUs, else `cpu`. Nothing, or None, means one for each
    GPU, and a single worker without any. Raises `WorkersPerNodeError`.
    """
    host = host or Host()
    if not spec:
        return gpu_count(environ, host) or 1
    if spec == "cpu":
        return len(os.sched_getaffinity(0))
    if spec == "auto":
        return gpu_count(environ, host) or len(os.sched_getaffinity(0))
    if spec == "gpu":
        count = gpu_count(environ, host)
        if count == 0:
            raise WorkersPerNodeError(_no_gpu(environ))
        return count
    if spec.isascii() and spec.isdigit() and 1 <= int(spec) <= WORKERS_MAX:
        return int(spec)
    raise WorkersPerNodeError(
        f"--nproc-per-node is {spec!r}, but has to be a number from 1 to {WORKERS_MAX}, or gpu, cpu or auto"
    )


def gpu_count(environ: Mapping[str, str], host: Host) -> int:
    """Return the number of GPUs that a worker will see: NVIDIA's, and where there are none of these, AMD's."""
    nvidia = _nvidia_gpus(host)
    if nvidia:
        return len(_visible(nvidia, environ.get("CUDA_VISIBLE_DEVICES")))
    amd = _amd_gpus(host.system)
    # ROCr hides GPUs from HIP, and HIP hides some of the rest, under the one name or the other.
    amd = _visible(amd, environ.get("ROCR_VISIBLE_DEVICES"))
    return len(_visible(amd, environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))))


def _no_gpu(environ: Mapping[str, str]) -> str:
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    hidden = [f"{name}={environ[name]!r}" for name in names if name in environ]
    why = f" (the environment says {', '.join(hidden)})" if hidden else ""
    return (
        f"--nproc-per-node is gpu, but this host offers no GPU{why}: check the driver with nvidia-smi or rocm-smi, "
        "or use a number or cpu"
    )


def _visible(gpus: list[str], listed: str | None) -> list[str]:
    """Return the GPUs that a `*_VISIBLE_DEVICES` variable leaves over; None, where it is not set, leaves all.

    As CUDA reads it (CUDA C++ Programming Guide, CUDA environment variables; `torch.cuda._parse_visible_devices`): the
    list ends at its first entry that names no GPU, and one that names a GPU twice leaves none.
    """
    if listed is None:
        return gpus
    if listed.startswith("MIG-"):
        # CUDA gives a process at most one slice of a partitioned GPU, however many are listed.
        return gpus[:1]
    visible: list[str] = []
    for entry in listed.split(","):
        gpu = _named(gpus, entry.strip())
        if gpu is None:
            break
        if gpu in visible:
            return []
        visible.append(gpu)
    return visible


def _named(gpus: list[str], entry: str) -> str | None:
    """Return the GPU with this number, or whose UUID alone begins so."""
    if entry.startswith("GPU-"):
        if not any(gpu.startswith("GPU-") for gpu in gpus):
            # Nobody told us the UUIDs, so the user's word is taken for it.
            return entry if gpus else None
        matches = [gpu for gpu in gpus if gpu.startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    # Like strtoul, CUDA takes the number that the entry begins with.
    number = _INTEGER.match(entry)
    if number is None or not 0 <= int(number[0]) < len(gpus):
        return None
    return gpus[int(number[0])]


def _nvidia_gpus(host: Host) -> list[str]:
    """Return the UUIDs of the GPUs, or where the driver's library does not tell, other names that differ."""
    uuids = _nvml_uuids(host.nvml)
    if uuids is not None:
        return uuids
    return sorted(path.name for path in host.devices.glob("nvidia*") if path.name[len("nvidia") :].isdigit())


def _nvml_uuids(library: str) -> list[str] | None:
    """Ask NVML, by the functions that nvml.h declares; None if it is missing or fails."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return None
        return [_nvml_uuid(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()


def _nvml_uuid(nvml: ctypes.CDLL, index: int) -> str:
    device = ctypes.c_void_p()
    uuid = ctypes.create_string_buffer(_UUID_BYTES)
    if (
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0
        or nvml.nvmlDeviceGetUUID(device, uuid, _UUID_BYTES) != 0
    ):
        # It counts all the same, and can still be chosen by its number.
        return f"unknown-{index}"
    return uuid.value.decode("ascii", "replace")


def _amd_gpus(system: Path) -> list[str]:
    """Return the names of the kernel's topology nodes that have compute units; those without are CPUs."""
    nodes = (system / "class/kfd/kfd/topology/nodes").glob("*/properties")
    ordered = sorted(nodes, key=lambda path: int(path.parent.name))
    return [uuid for path in ordered if (uuid := _amd_gpu(path)) is not None]


def _amd_gpu(properties: Path) -> str | None:
    try:
        words = dict(line.split(maxsplit=1) for line in properties.read_text().splitlines() if " " in line)
    except PermissionError:
        # A container's view of a GPU that is not given to it.
        return None
    if int(words.get("simd_count", "0")) == 0:
        return None
    # ROCr writes the UUID of a GPU as 16 hexadecimal digits.
    return f"GPU-{int(words.get('unique_id', '0')):016x}/{properties.parent.name}"
