"""Finds GPUs whose memory is in use, and the processes that may use it.

GPU memory may outlive its process, while the driver releases it or another process has it open. So the driver (NVML)
tells how much is in use, and /proc names possible users. NVML names users too, but in a container it names processes of
the host, or none.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from coordinatord.runtime.tasks import in_thread
from nodeclient.core.host_health import GpuProcess, GpuUse
from nodeclient.core.sweeping import FREE_BYTES
from nodeclient.host.devices import THIS_HOST, Gpu, Host, visible_gpus
from nodeclient.host.process_state import (
    STAT_FLAGS,
    STAT_PARENT,
    STAT_SESSION,
    STAT_STATE,
    open_files,
    read_if_there,
    stat_fields,
)

_ENDING_STATES = frozenset("DZX")
"""The states of a killed process until the driver has released its memory: it waits in the kernel, or is a zombie, or
dead. A living process may wait in the kernel, too."""

_PF_EXITING = 0x4
"""The flag in linux/sched.h of a process that is ending."""

_INIT = 1
"""The process that adopts orphans, unless an ancestor of theirs has asked for them, as nodeclient does."""

SAMPLE_WITHIN_S = 10.0
"""The timeout of a sample. It takes milliseconds, or seconds if nothing keeps the driver initialised. If the driver
hangs, an error of the workers will say more."""


async def sample_gpus(
    environ: Mapping[str, str], host: Host = THIS_HOST, within_s: float = SAMPLE_WITHIN_S
) -> tuple[GpuUse, ...]:
    """Return `uses_of` the GPUs that workers see; none if NVIDIA's driver is missing, hangs, or refuses."""
    if not (host.devices / "nvidiactl").exists():
        return ()
    with suppress(OSError):  # the system has no free thread, or a file of the kernel cannot be read
        sample = in_thread(lambda: uses_of(visible_gpus(environ, host), host, os.getpid()), "gpus")
        await asyncio.wait([sample], timeout=within_s)
        return sample.result() if sample.done() else ()
    return ()


def uses_of(gpus: Iterable[Gpu], host: Host, node_pid: int) -> tuple[GpuUse, ...]:
    """Return which of these GPUs have more than `FREE_BYTES` in use, and the processes that may have it.

    `node_pid` is the process of nodeclient, which may have adopted orphans of its workers.
    """
    used = [gpu for gpu in gpus if gpu.used_bytes > FREE_BYTES]
    users = list(_users_of_cuda(host, node_pid)) if used else []
    return tuple(
        GpuUse(gpu.file or gpu.name, gpu.used_bytes, tuple(user for user, files in users if gpu.file in files))
        for gpu in used
    )


def _users_of_cuda(host: Host, node_pid: int) -> Iterator[tuple[GpuProcess, frozenset[str]]]:
    """Yield the processes that have initialised CUDA, each with the names of its open device files.

    cuInit opens `nvidia-uvm`, and NVML does not. The name "" is always there, for a GPU whose file is not known.
    """
    for folder in host.processes.iterdir():
        if not folder.name.isdigit():
            continue
        files = {path.name for path in open_files(folder) if path.parent == host.devices}
        if "nvidia-uvm" in files and (process := _gpu_process(int(folder.name), host.processes, node_pid)) is not None:
            yield process, frozenset({"", *files})


def _gpu_process(pid: int, processes: Path, node_pid: int) -> GpuProcess | None:
    fields = stat_fields(pid, processes)
    if not fields:
        return None
    ends = fields[STAT_STATE] in _ENDING_STATES or bool(int(fields[STAT_FLAGS]) & _PF_EXITING)
    parent, leads_session = int(fields[STAT_PARENT]), int(fields[STAT_SESSION]) == pid
    # Those children of the node's process that lead a session were started by it. The others are orphans of its
    # workers. Any other orphan is a child of init, as a service is, which lacks a worker's environment.
    orphaned = not leads_session if parent == node_pid else parent == _INIT and _was_of_worker(pid, processes)
    with suppress(OSError):
        return GpuProcess(pid, _user_of(processes / str(pid)), left_behind=ends or orphaned)
    return None


def _was_of_worker(pid: int, processes: Path) -> bool:
    """Whether a process has the environment of a worker, of any launcher: it is a worker, or was started by one."""
    environ = read_if_there(processes / str(pid) / "environ")
    return any(variable.startswith("LOCAL_RANK=") for variable in environ.split("\0"))


def _user_of(process: Path) -> str:
    uid = process.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
