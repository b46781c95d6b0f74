"""What the kernel tells of a process without asking it: its state, where it waits, and the time that it has used."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

from coordinatord.protocol.frozen_class import frozen

RUNNING = "running"
SLEEPING = "sleeping"
WAITS_FOR_DISK = "waiting for IO"

STATES = {
    "R": RUNNING,
    "S": SLEEPING,
    "D": WAITS_FOR_DISK,
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

_IO_COUNTERS = frozenset({"rchar", "wchar", "read_bytes", "write_bytes"})
"""What counts in /proc/PID/io. The former two move when a system call is over, the latter two while it goes on."""

_FUSE = re.compile(r"request_wait_answer|.*fuse_")
"""The functions of the kernel in which a process waits for a file system in another program: it sleeps there."""

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
    waits_for_disk: bool
    """Whether any of these threads waits for a disk, or for a file system of the network."""


def look_at(pid: int, proc: Path = Path("/proc")) -> ProcessState | None:
    """Look at a process; None if it is gone."""
    fields = _stat(pid, proc)
    if not fields:
        return None
    letter, waits_in = fields[_STATE], read_if_there(proc / str(pid) / "wchan")
    ticks, io_bytes, threads = 0, 0, set[str]()
    for descendant in _with_descendants(pid, proc):
        threads |= _thread_states(descendant, proc)
        ticks += sum(map(int, _stat(descendant, proc)[_TIMES]))
        io_bytes += _io_bytes(descendant, proc)
    state = STATES.get(letter, letter)
    return ProcessState(
        state=WAITS_FOR_DISK if state == SLEEPING and _FUSE.match(waits_in) else state,
        waits_in=waits_in if waits_in != "0" else "",
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        io_bytes=io_bytes,
        wants_cpu="R" in threads,
        waits_for_disk="D" in threads,
    )


def is_stopped(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a signal has stopped a process: it takes note of nothing, and is not just looked at by another one."""
    return _stat(pid, proc)[:1] == ["T"]


def _io_bytes(pid: int, proc: Path) -> int:
    counters = (line.partition(": ") for line in read_if_there(proc / str(pid) / "io").splitlines())
    return sum(int(number) for name, _, number in counters if name in _IO_COUNTERS)


def _thread_states(pid: int, proc: Path) -> set[str]:
    """Return the states in which the threads of a process are."""
    try:
        threads = [entry.name for entry in islice(os.scandir(proc / str(pid) / "task"), _THREADS_MAX)]
    except OSError:
        return set()
    stats = (read_if_there(proc / str(pid) / "task" / thread / "stat") for thread in threads)
    return {state for stat in stats for state in stat.rpartition(")")[2].split()[:1]}


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


def state_between(before: ProcessState | None, after: ProcessState | None) -> str:
    """Return the state of a process by two looks; one that sleeps may have others at work for it.

    If it wants a CPU at both looks, it computes: on a busy host it may hardly have got one.
    """
    if before is None or after is None:
        return "" if after is None else after.state
    if after.state != SLEEPING:
        return after.state
    if before.wants_cpu and after.wants_cpu:
        return RUNNING
    return WAITS_FOR_DISK if before.waits_for_disk and after.waits_for_disk else after.state


def catches(pid: int, signum: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a handler for a signal: any other would end by it."""
    try:
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    caught = next((int(line.partition(":")[2], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signum - 1) & 1)
