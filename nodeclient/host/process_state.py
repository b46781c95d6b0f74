"""What the kernel tells of a process without asking it: its state, where it waits, and the time that it has used."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from coordinatord.protocol.frozen_class import frozen

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for IO",
    "T": "stopped",
    "t": "traced",
    "Z": "ended",
    "X": "ended",
    "I": "idle",
}
"""The states of proc_pid_stat(5), in words."""

HALTED = frozenset({"stopped", "traced", "ended"})
"""The states in which a process does nothing, whatever it is sent."""

_STATE = 0
_TIMES = slice(11, 15)
"""Fields of /proc/PID/stat, counted after the name. The times are its own and those of children that have ended."""

_THREADS_MAX = 1_024
"""The threads of a process that are looked at: some of each CPU, on a large host."""

_CHILDREN_MAX = 64
"""The descendants whose work counts as the worker's: those that load its data."""


@frozen
class ProcessState:
    """A look at one process."""

    state: str
    """A word, or the kernel's own letter."""
    waits_in: str
    """The function of the kernel in which its main thread waits; empty if it waits in none or this is not told."""
    cpu_s: float
    """The time that all of its threads have used, and its descendants."""
    io_bytes: int
    """What they have read and written, where that may be seen: as a disk of a network does, too."""
    wants_cpu: bool
    """Whether any of these threads runs, or would run if a CPU were free: on a busy host it may use little time."""


def look_at(pid: int, proc: Path = Path("/proc")) -> ProcessState | None:
    """Look at a process; None if it is gone."""
    fields = _stat(pid, proc)
    if not fields:
        return None
    letter, waits_in = fields[_STATE], read_if_there(proc / str(pid) / "wchan")
    ticks, io_bytes, wants_cpu = 0, 0, False
    for descendant in _with_descendants(pid, proc):
        wants_cpu = wants_cpu or _wants_cpu(descendant, proc)
        ticks += sum(map(int, _stat(descendant, proc)[_TIMES]))
        io_bytes += sum(int(line.split()[1]) for line in read_if_there(proc / str(descendant) / "io").splitlines()[:2])
    return ProcessState(
        state=STATES.get(letter, letter),
        waits_in=waits_in if waits_in != "0" else "",
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        io_bytes=io_bytes,
        wants_cpu=wants_cpu,
    )


def _wants_cpu(pid: int, proc: Path) -> bool:
    """Whether a thread of a process runs, or waits for nothing but a CPU."""
    try:
        threads = [entry.name for entry in islice(os.scandir(proc / str(pid) / "task"), _THREADS_MAX)]
    except OSError:
        return False
    return any(
        read_if_there(proc / str(pid) / "task" / thread / "stat").rpartition(")")[2].split()[:1] == ["R"]
        for thread in threads
    )


def _stat(pid: int, proc: Path) -> list[str]:
    return read_if_there(proc / str(pid) / "stat").rpartition(")")[2].split()


def _with_descendants(pid: int, proc: Path) -> list[int]:
    """Return a process and what it has started, as far as the kernel tells."""
    pids = [pid]
    for parent in pids:  # the list grows
        if len(pids) <= _CHILDREN_MAX:
            pids += map(int, read_if_there(proc / str(parent) / "task" / str(parent) / "children").split())
    return pids


def read_if_there(path: Path) -> str:
    """Return what a file of the kernel says; nothing if it is gone, or only for those who may trace the process."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def catches(pid: int, signum: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a handler for a signal: any other would end by it."""
    try:
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    caught = next((int(line.partition(":")[2], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signum - 1) & 1)
