"""Finds the GPUs that workers will see, without torch, and counts a host's workers by its GPUs or CPUs.

A node has to know the number of its workers before any of them starts, and nodeclient never imports torch. So NVIDIA's
management library (NVML) is called directly. Its structures are packed here by hand, as nvml.h declares them. Without
it, the kernel's device files still tell how many GPUs there are.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import WORKERS_MAX

_UUID_BYTES = 96
"""The value of NVML_DEVICE_UUID_V2_BUFFER_SIZE in nvml.h."""

_PCI_INFO = struct.Struct("=16s5I32s")
"""`nvmlPciInfo_t` in nvml.h; domain, bus and device are the second to the fourth."""

_MINOR = struct.Struct("@I")
"""The number of a GPU's device file."""

_MEMORY = struct.Struct("@I4Q")
"""`nvmlMemory_v2_t` in nvml.h: its version, then the total, reserved, free and used memory."""

_MEMORY_VERSION = _MEMORY.size | 2 << 24
"""The value of `nvmlMemory_v2`, by the macro NVML_STRUCT_VERSION."""

_FIELD_VALUE = struct.Struct("@IIqqIiI4x")
"""`nvmlFieldValue_t` in nvml.h: the field, its scope, the time and the latency; then the type of the value, the error,
and the value, which here is an unsigned integer."""

_RECOVERY_ACTION = 230
"""The value of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION in nvml.h."""

_INTEGER = re.compile(r"[+-]?\d+")
"""The number at the start of an entry of CUDA_VISIBLE_DEVICES, as strtoul parses it."""

_DEVICE_MINOR = re.compile(r"^Device Minor:\s*(\d+)$", re.MULTILINE)
"""The line of /proc/driver/nvidia/gpus/*/information with the number of a GPU's device file."""


class WorkersPerNodeError(OperationalError):
    """`--nproc-per-node` is invalid, or asks for GPUs on a host without any."""


class Host(Struct, frozen=True):
    """A host, given as the places where its kernel and its driver describe it."""

    devices: Path = Path("/dev")
    system: Path = Path("/sys")
    nvml: str = "libnvidia-ml.so.1"
    """NVIDIA's management library, which comes with the driver."""
    processes: Path = Path("/proc")


THIS_HOST = Host()


class Gpu(Struct, frozen=True):
    """One GPU, as described by its host."""

    name: str
    """Its UUID, or another unique name if unknown."""
    pci_address: str | None
    """Its name in `/sys/bus/pci/devices`; None if unknown."""
    file: str = ""
    """Its device file, such as `nvidia0`; empty if unknown."""
    used_bytes: int = 0
    """Its memory in use by processes, and by ended ones until it is released; 0 if unknown."""
    recovery: int | None = None
    """The action that NVIDIA's driver wants before the GPU can be used, see `GpuFacts`; None if unknown."""


def workers_per_node(spec: str | None, environ: Mapping[str, str], host: Host = THIS_HOST) -> int:
    """Return the number of workers that `--nproc-per-node` means: a number, `gpu`, `cpu` or `auto`.

    `gpu` means one worker for each GPU, and is an error without GPUs. `cpu` means one for each CPU that this process
    may use; torchrun counts all CPUs of the host. `auto` is `gpu` with GPUs, else `cpu`. An empty text or None means
    one for each GPU, or a single worker without GPUs. Raises `WorkersPerNodeError`.
    """
    cpus = len(os.sched_getaffinity(0))
    if spec == "cpu":
        return cpus
    if spec in {None, "", "auto", "gpu"}:
        gpus = len(visible_gpus(environ, host))
        if spec == "gpu" and gpus == 0:
            raise WorkersPerNodeError(
                f"--nproc-per-node is gpu, but this host offers no GPU{visibility_remark(environ)}: "
                "check the driver with nvidia-smi or rocm-smi, or use a number or cpu"
            )
        return gpus or (cpus if spec == "auto" else 1)
    if spec.isascii() and spec.isdigit() and 1 <= int(spec) <= WORKERS_MAX:
        return int(spec)
    raise WorkersPerNodeError(
        f"--nproc-per-node is {spec!r}, but has to be a number from 1 to {WORKERS_MAX}, or gpu, cpu or auto"
    )


def visible_gpus(environ: Mapping[str, str], host: Host) -> list[Gpu]:
    """Return the GPUs that a worker will see: NVIDIA's, or AMD's if there are none.

    They are in the worker's order, except on a host with different models: CUDA begins with the fastest one there,
    unless CUDA_DEVICE_ORDER is PCI_BUS_ID, and the driver's library with the first one on the PCI bus.
    """
    nvidia = _nvidia_gpus(host)
    if nvidia:
        return _visible(nvidia, environ.get("CUDA_VISIBLE_DEVICES"))
    amd = _amd_gpus(host.system)
    # ROCr hides GPUs from HIP, and HIP hides more of them, by one of two variables.
    amd = _visible(amd, environ.get("ROCR_VISIBLE_DEVICES"))
    return _visible(amd, environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")))


def visibility_remark(environ: Mapping[str, str]) -> str:
    """Return the variables that may hide GPUs as a remark in brackets, after a blank; empty if none is set."""
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    hidden = [f"{name}={environ[name]!r}" for name in names if name in environ]
    return f" (the environment says {', '.join(hidden)})" if hidden else ""


def _visible(gpus: list[Gpu], listed: str | None) -> list[Gpu]:
    """Return the GPUs that a `*_VISIBLE_DEVICES` variable selects; None (not set) selects all.

    It is read as by CUDA (CUDA C++ Programming Guide, CUDA environment variables; `torch.cuda._parse_visible_devices`):
    the list ends at its first entry that names no GPU, and a list that names a GPU twice selects none.
    """
    if listed is None:
        return gpus
    if listed.startswith("MIG-"):
        # CUDA gives a process at most one slice of a partitioned GPU, however many are listed.
        return [Gpu(listed.partition(",")[0], None)] if gpus else []
    visible: list[Gpu] = []
    for entry in listed.split(","):
        gpu = _named(gpus, entry.strip())
        if gpu is None:
            break
        if gpu in visible:
            return []
        visible.append(gpu)
    return visible


def _named(gpus: list[Gpu], entry: str) -> Gpu | None:
    if entry.startswith("GPU-"):
        if not any(gpu.name.startswith("GPU-") for gpu in gpus):
            # Without known UUIDs, the user's entry counts as the UUID of a GPU.
            return Gpu(entry, None) if gpus else None
        matches = [gpu for gpu in gpus if gpu.name.startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    number = _INTEGER.match(entry)
    if number is None or not 0 <= int(number[0]) < len(gpus):
        return None
    return gpus[int(number[0])]


def _nvidia_gpus(host: Host) -> list[Gpu]:
    """Return the GPUs with their UUIDs, or with other unique names if the driver's library does not report UUIDs."""
    gpus = _nvml_gpus(host.nvml)
    if gpus is not None:
        return gpus
    suffixes = [path.name.removeprefix("nvidia") for path in host.devices.glob("nvidia*")]
    names = [f"nvidia{minor}" for minor in sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())]
    addresses = _addresses_by_device_file(host.processes)
    return [Gpu(name, addresses.get(name)) for name in names]


def _addresses_by_device_file(processes: Path) -> dict[str, str]:
    """Read the PCI address of each GPU from /proc, which a container without NVML may still see."""
    files = (processes / "driver/nvidia/gpus").glob("*/information")
    minors = ((_DEVICE_MINOR.search(file.read_text()), file.parent.name) for file in files)
    return {f"nvidia{minor[1]}": address for minor, address in minors if minor}


def _nvml_gpus(library: str) -> list[Gpu] | None:
    """Return the GPUs that NVML reports, by the functions of nvml.h; None if it is missing or fails."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    if not _succeeds(nvml, "nvmlInit_v2"):
        return None
    try:
        count = ctypes.c_uint()
        if not _succeeds(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count)):
            return None
        return [_nvml_gpu(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()


def _succeeds(nvml: ctypes.CDLL, function: str, *arguments: object) -> bool:
    """Call a function of NVML; return whether this driver has it and it succeeded. It writes into its `arguments`."""
    call = getattr(nvml, function, None)
    return call is not None and call(*arguments) == 0


def _nvml_gpu(nvml: ctypes.CDLL, index: int) -> Gpu:
    device = ctypes.c_void_p()
    uuid = ctypes.create_string_buffer(_UUID_BYTES)
    is_found = _succeeds(nvml, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
    if not (is_found and _succeeds(nvml, "nvmlDeviceGetUUID", device, uuid, _UUID_BYTES)):
        # The GPU counts all the same, and can still be chosen by its number.
        return Gpu(f"unknown-{index}", None)
    pci = _structure(nvml, "nvmlDeviceGetPciInfo_v3", device, layout=_PCI_INFO)
    minor = _structure(nvml, "nvmlDeviceGetMinorNumber", device, layout=_MINOR)
    # From release 510 on, NVIDIA's drivers leave the memory that they reserve out of the used memory. From 570 on, a
    # field has the recovery action.
    memory = _structure(nvml, "nvmlDeviceGetMemoryInfo_v2", device, layout=_MEMORY, first=_MEMORY_VERSION)
    recovery = _structure(nvml, "nvmlDeviceGetFieldValues", device, 1, layout=_FIELD_VALUE, first=_RECOVERY_ACTION)
    return Gpu(
        uuid.value.decode("ascii", "replace"),
        f"{pci[1]:04x}:{pci[2]:02x}:{pci[3]:02x}.0" if pci else None,
        f"nvidia{minor[0]}" if minor else "",
        memory[-1] if memory else 0,
        recovery[-1] if recovery and recovery[-2] == 0 else None,
    )


def _structure(
    nvml: ctypes.CDLL, function: str, *arguments: object, layout: struct.Struct, first: int = 0
) -> tuple[Any, ...] | None:
    """Return the fields of a structure that a function of NVML fills; None if it fails.

    `first` is the integer in its first field, by which NVML knows what is wanted.
    """
    filled = ctypes.create_string_buffer(first.to_bytes(4, sys.byteorder), layout.size)
    return layout.unpack(filled.raw) if _succeeds(nvml, function, *arguments, filled) else None


def _amd_gpus(system: Path) -> list[Gpu]:
    """Return the kernel's topology nodes with compute units; those without are CPUs."""
    nodes = (system / "class/kfd/kfd/topology/nodes").glob("*/properties")
    ordered = sorted(nodes, key=lambda path: int(path.parent.name))
    return [gpu for path in ordered if (gpu := _amd_gpu(path)) is not None]


def _amd_gpu(properties: Path) -> Gpu | None:
    try:
        words = dict(line.split(maxsplit=1) for line in properties.read_text().splitlines() if " " in line)
    except PermissionError:
        # The container sees the GPU but was not given it.
        return None
    if int(words.get("simd_count", "0")) == 0:
        return None
    # ROCr formats the UUID of a GPU as 16 hexadecimal digits. A GPU may have none, so the node makes the name unique.
    name = f"GPU-{int(words.get('unique_id', '0')):016x}/{properties.parent.name}"
    if "location_id" not in words:
        return Gpu(name, None)
    # Bus, device and function as PCI packs them (kfd_topology.c).
    place = int(words["location_id"])
    address = f"{int(words.get('domain', '0')):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
    return Gpu(name, address)
