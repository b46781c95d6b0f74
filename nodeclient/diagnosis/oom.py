"""Finds out, without privileges, whether a worker ended for lack of memory.

A worker that the kernel's OOM killer ends dies of SIGKILL, and writes nothing. The kernel counts such kills for each
cgroup (v2, or the memory controller of v1) and for the whole host. So two counters are compared with their values from
before the worker was started: that of our cgroup, which our workers share, and that of the host. The kernel counts
before it kills, so the kill of a worker that has ended is counted. The kernel's log, if it may be read,
says how much memory the worker had.

An allocation that is larger than all memory of the host or the GPU fails at once. Such a size is a mistake of the
script, often in a unit or a shape, and no host is short of memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.text import sized
from nodeclient.host.capacity import control_groups, limit_of, memory_and_swap
from nodeclient.host.devices import THIS_HOST, Host
from nodeclient.host.kernel_log import read_records
from nodeclient.host.process_state import read_if_there

_COUNTERS = ("memory.events", "memory.oom_control")
"""The files with the kills of a cgroup, of version 2 and 1."""


class OomKills(Struct, frozen=True):
    """The kernel's counters of processes that the OOM killer has ended; None if not known."""

    cgroup: int | None = None
    """The kills in this process's cgroup, whichever limit was reached."""
    host: int | None = None
    """The kills on the whole host."""
    limit_hits: Mapping[Path, int] = {}
    """How often the OOM killer was triggered by the limit of this process's cgroup, and of each above it."""


class OomKill(Struct, frozen=True):
    """A process that the OOM killer ended."""

    reason: str
    """The exhausted resource."""
    certain: bool
    """Whether it was in our cgroup; otherwise it may be any process of this host."""


def count_kills(host: Host = THIS_HOST) -> OomKills:
    """Read the counters of a host. Never raises."""
    groups = list(_memory_cgroups(host))
    hits = {group: hit for group in groups if (hit := _read_counter(group / "memory.events.local", "oom")) is not None}
    files = (groups[0] / name for name in _COUNTERS) if groups else ()
    own = next((count for file in files if (count := _read_counter(file, "oom_kill")) is not None), None)
    return OomKills(own, _read_counter(host.processes / "vmstat", "oom_kill"), hits)


def kill_since(before: OomKills, host: Host = THIS_HOST) -> OomKill | None:
    """Return the OOM kill since `before` that may have hit a worker, if any. Never raises."""
    now = count_kills(host)
    if now.cgroup is not None and before.cgroup is not None:
        return OomKill(_exhausted(before, now, host), certain=True) if now.cgroup > before.cgroup else None
    if now.host is not None and before.host is not None and now.host > before.host:
        return OomKill("probably: the host's count of its kills has grown", certain=False)
    return None


def _exhausted(before: OomKills, now: OomKills, host: Host) -> str:
    """Return the limit that was reached, or else that the host was out of memory."""
    for group, hits in now.limit_hits.items():
        limit = limit_of(group)
        if hits > before.limit_hits.get(group, 0) and limit is not None:
            return f"memory limit of its cgroup: {sized(limit)}"
    limits = [limit for group in _memory_cgroups(host) if (limit := limit_of(group)) is not None]
    if limits and not now.limit_hits:  # an older kernel, or cgroup v1, counts no hits
        return f"memory limit of its cgroup: {sized(min(limits))}"
    total = _read_counter(host.processes / "meminfo", "MemTotal:")
    has = "" if total is None else f", which has {sized(total * 1024)}"
    return f"out of memory on the host{has}"


def _memory_cgroups(host: Host) -> Iterator[Path]:
    """Yield the memory cgroup of this process, and those above it that count kills."""
    for group, _ in control_groups("memory", host):
        if any((group / file).exists() for file in _COUNTERS):
            yield group


def _read_counter(path: Path, name: str) -> int | None:
    """Return the number after `name`, which begins a line of the file; None if there is none."""
    for line in read_if_there(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The namespace of the process ids in the kernel log (PROC_PID_INIT_INO in the kernel)."""

_KILLED = re.compile(
    r"Killed process (?P<pid>\d+) \(.*?anon-rss:(?P<anon>\d+)kB(?:, file-rss:\d+kB, shmem-rss:(?P<shmem>\d+)kB)?"
)


def memory_of_killed(pid: int, host: Host = THIS_HOST) -> int | None:
    """Return the memory of a process when the OOM killer ended it, in bytes; None if the log does not show it.

    Pages of files do not count, since the kernel can take them back. If the id was reused, the last process counts.
    """
    try:
        if str((host.processes / "self/ns/pid").readlink()) != FIRST_PID_NAMESPACE:
            return None
    except OSError:
        return None
    size = None
    for record in read_records(host):
        if (killed := _KILLED.search(record)) and int(killed["pid"]) == pid:
            size = (int(killed["anon"]) + int(killed["shmem"] or 0)) * 1024
    return size


_SIZE = r"([\d.]+) (bytes|[KMGTPE]iB)"

_HOST_REQUEST = re.compile(rf"you tried to allocate {_SIZE}|Unable to allocate {_SIZE} for an array")
"""The errors of torch and NumPy."""

_GPU_REQUEST = re.compile(rf"Tried to allocate {_SIZE}\. GPU \d+ has a total capacity of {_SIZE}")
"""The errors of torch about a GPU, whatever its maker."""

_EXPONENTS = {unit: exponent for exponent, unit in enumerate(("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))}


def explain_oversized(error: str, host: Host = THIS_HOST) -> str:
    """Say how much memory a worker asked for, if that was more than there is in all; empty otherwise. Never raises.

    `error` is its exception in one line.
    """
    if found := _GPU_REQUEST.search(error):
        return _explain(_bytes(found[1], found[2]), _bytes(found[3], found[4]), "GPU")
    if found := _HOST_REQUEST.search(error):
        number, unit = filter(None, found.groups())
        return _explain(_bytes(number, unit), memory_and_swap(host), "host")
    return ""


def _explain(wanted: int, total: int | None, owner: str) -> str:
    if total is None or wanted <= total:
        return ""
    return f"it asked for {sized(wanted)} at once, and the {owner} has {sized(total)} in all"


def _bytes(number: str, unit: str) -> int:
    """Return a size in bytes; 0 if `number` is no number."""
    try:
        return int(float(number) * 1024 ** _EXPONENTS[unit])
    except (ValueError, OverflowError):
        return 0
