"""Finds how many CPUs and how much memory this process may use: those of the host, or of its container.

/proc and /sys show the CPUs and the memory of the whole host; a container may use less, by its control groups.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from nodeclient.host.devices import Host
from nodeclient.host.process_state import read_if_there, read_number

_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
"""A line of /proc/meminfo (proc_meminfo(5))."""

_NO_LIMIT = 1 << 60
"""More than any host has. Version 1 of the control groups reports a higher number if there is no limit."""


def control_groups(controller: str, host: Host) -> Iterator[tuple[Path, bool]]:
    """Yield the directories of all groups that limit this process by a controller, such as `cpu`, the innermost first.

    Each comes with whether it is of version 2, where all controllers share directories. It need not exist. The limits
    of all groups apply. See the kernel's cgroup-v2.rst and cgroup-v1.
    """
    for group in read_if_there(host.processes / "self/cgroup").splitlines():
        _, controllers, path = group.split(":", 2)
        # In a container, the directory of this path may be missing. The visible root, the last parent, is its group.
        below = PurePosixPath(path.lstrip("/"))
        root = host.system / "fs/cgroup"
        if not controllers:
            yield from ((root / folder, True) for folder in (below, *below.parents))
        elif controller in controllers.split(","):
            yield from ((root / controller / folder, False) for folder in (below, *below.parents))


def allowed_cpus() -> frozenset[int]:
    """Return the CPUs that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def cpu_quota(host: Host) -> float | None:
    """Return the CPU quota of this process's control groups, in CPUs; None without a limit.

    See cpu.max in the kernel's cgroup-v2.rst, and cpu.cfs_quota_us in sched-bwc.rst for version 1.
    """
    limits = (_quota_v2(folder) if unified else _quota_v1(folder) for folder, unified in control_groups("cpu", host))
    return min((limit for limit in limits if limit is not None), default=None)


def _quota_v2(group: Path) -> float | None:
    quota, _, period = read_if_there(group / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() else None


def _quota_v1(group: Path) -> float | None:
    quota, period = read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None  # -1 stands for no limit


class Memory(Struct, frozen=True):
    """Sizes in bytes."""

    total: int
    """The most that this process and its workers may use."""
    available: int
    """The part that is available without swapping; caches count as available."""


def memory(host: Host) -> Memory:
    """Return the memory of the host; each size is that of a control group if it is less there. Raises `OSError`."""
    text = (host.processes / "meminfo").read_text(encoding="ascii", errors="replace")
    fields = {name: int(kilobytes) * 1024 for name, kilobytes in _FIELD.findall(text)}
    total, available = fields["MemTotal"], fields.get("MemAvailable", fields["MemFree"])
    for folder, unified in control_groups("memory", host):
        limit, used = limit_of(folder), read_number(folder / ("memory.current" if unified else "memory.usage_in_bytes"))
        if limit is None or used is None:
            continue
        # The kernel reclaims inactive file caches before it refuses memory.
        total, available = min(total, limit), min(available, limit - used + _cached(folder / "memory.stat"))
    return Memory(total, max(available, 0))


def memory_and_swap(host: Host) -> int | None:
    """Return the size of all memory and swap space of the host in bytes; None if it cannot be read."""
    sizes = {name: int(kilobytes) for name, kilobytes in _FIELD.findall(read_if_there(host.processes / "meminfo"))}
    return (sizes["MemTotal"] + sizes.get("SwapTotal", 0)) * 1024 if "MemTotal" in sizes else None


def limit_of(group: Path) -> int | None:
    """Return the memory limit of a control group of either version, in bytes; None without one."""
    limit = read_number(group / "memory.max") or read_number(group / "memory.limit_in_bytes")
    return limit if limit is not None and limit < _NO_LIMIT else None


def address_space_left() -> int | None:
    """Return how many bytes this process may still map; None without a limit (`ulimit -v`). Raises `OSError`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, limit - pages * resource.getpagesize())


def _cached(file: Path) -> int:
    """Return the bytes of inactive file caches by the statistics of a control group; 0 if unknown."""
    lines = dict(line.partition(" ")[::2] for line in read_if_there(file).splitlines())
    # In version 1 the name with `total_` includes the groups below, as the name of version 2 does.
    return int(lines.get("total_inactive_file", lines.get("inactive_file", "0")))
