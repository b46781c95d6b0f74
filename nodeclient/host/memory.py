"""Finds the total and the available memory of this host, or of this process's container."""

from __future__ import annotations

import re
import resource
from pathlib import Path

from msgspec import Struct

from nodeclient.host.control_groups import control_groups
from nodeclient.host.devices import Host
from nodeclient.host.process_state import read_if_there, read_number

_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
"""A line of /proc/meminfo (proc_meminfo(5))."""

_NO_LIMIT = 1 << 60
"""More than any host has. Version 1 of the control groups reports a higher number if there is no limit."""


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
