"""Finds GPUs whose memory is in use, and the processes that use them.

Memory outlives its processes: the driver may still release it, or another process has opened it too. So only the driver
knows how much is in use, and /proc only names the possible users. NVML could name them as well, but in a container it
names processes of the host, or none.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from coordinatord.runtime.tasks import in_thread
from nodeclient.core.events import GpuProcess, GpuUse
from nodeclient.core.sweeping import FREE_BYTES
from nodeclient.host.devices import Host, visible_gpus
from nodeclient.host.process_state import open_files, stat_fields

_STATE, _PARENT, _FLAGS = 0, 1, 6
"""Fields of /proc/PID/stat, counted after the name."""

_ENDING_STATES = frozenset("DZX")
"""Waiting in the kernel, zombie, dead. A killed process is in one of these states until the driver has released its
memory."""

_PF_EXITING = 0x4
"""The flag in linux/sched.h."""

_INIT = 1

LOOK_WITHIN_S = 10.0
"""The timeout: it takes milliseconds, or seconds if nothing keeps the driver initialised. A hung driver is left to the
workers, whose error says more."""


async def sample_gpus(
    environ: Mapping[str, str], host: Host | None = None, within_s: float = LOOK_WITHIN_S
) -> tuple[GpuUse, ...]:
    """Return the result of `gpus_in_use`, or nothing if NVIDIA's driver is missing, hangs, or may not be used."""
    host = host or Host()
    if not (host.devices / "nvidiactl").exists():
        return ()
    with suppress(OSError):
        look = in_thread(partial(gpus_in_use, environ, host), "gpus")
        look.add_done_callback(lambda look: look.exception())  # a look that is given up may fail later
        await asyncio.wait([look], timeout=within_s)
        return look.result() if look.done() else ()
    return ()


def gpus_in_use(environ: Mapping[str, str], host: Host) -> tuple[GpuUse, ...]:
    """Return the GPUs visible to workers with more than `FREE_BYTES` in use, by NVML."""
    used = [gpu for gpu in visible_gpus(environ, host) if gpu.used_bytes > FREE_BYTES]
    users = list(_users_of_cuda(host)) if used else []
    return tuple(
        GpuUse(gpu.file or gpu.name, gpu.used_bytes, tuple(user for user, files in users if (gpu.file or "") in files))
        for gpu in used
    )


def _users_of_cuda(host: Host) -> Iterator[tuple[GpuProcess, frozenset[str]]]:
    """Yield the processes that have initialised CUDA, with their open device files; "" stands for any file.

    cuInit opens `nvidia-uvm`, and NVML does not.
    """
    for folder in host.processes.iterdir():
        if not folder.name.isdigit():
            continue
        files = {path.name for path in open_files(folder) if path.parent == host.devices}
        if "nvidia-uvm" in files and (process := _look_at(int(folder.name), host.processes)) is not None:
            yield process, frozenset({"", *files})


def _look_at(pid: int, processes: Path) -> GpuProcess | None:
    fields = stat_fields(pid, processes)
    if not fields:
        return None
    ends = fields[_STATE] in _ENDING_STATES or bool(int(fields[_FLAGS]) & _PF_EXITING)
    orphaned = int(fields[_PARENT]) in {_INIT, os.getpid()}
    with suppress(OSError):
        return GpuProcess(pid, _user_of(processes / str(pid)), left_behind=ends or orphaned)
    return None


def _user_of(process: Path) -> str:
    uid = process.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
