"""Finds the CPUs that this process may use, and their topology, from the kernel's description."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from coordinatord.protocol.text import spans
from nodeclient.host.control_groups import control_groups
from nodeclient.host.devices import Host
from nodeclient.host.process_state import read_if_there, read_number


def allowed_cpus() -> frozenset[int]:
    """Return the CPUs that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def parse_cpus(text: str) -> frozenset[int]:
    """Parse a list of the kernel: `0-3,8`."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """Format a list as the kernel does."""
    return ",".join(spans(sorted(cpus)))


def core_of(cpu: int, host: Host) -> int:
    """Return the first CPU of a CPU's physical core; the CPU itself if the kernel does not describe it."""
    siblings = read_if_there(host.system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return min(parse_cpus(siblings), default=cpu)


def cpu_quota(host: Host) -> float | None:
    """Return the CPU quota of this process's control groups, in CPUs; None without a limit.

    See cpu.max in the kernel's cgroup-v2.rst, and cpu.cfs_quota_us in sched-bwc.rst for version 1.
    """
    limits = (_limit_v2(folder) if unified else _limit_v1(folder) for folder, unified in control_groups("cpu", host))
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_v2(group: Path) -> float | None:
    quota, _, period = read_if_there(group / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() else None


def _limit_v1(group: Path) -> float | None:
    quota, period = read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None  # -1 stands for no limit
