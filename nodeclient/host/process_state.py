"""Reads the state of a process from /proc, without its help: where it waits, its CPU time, its files and sockets.

A worker that hangs may answer nothing. Two samples of it still show whether it computes, reads a disk, or stands still.
A process may end at any moment, so each function returns something empty then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from glob import escape, iglob
from itertools import islice
from pathlib import Path

from msgspec import Struct

from coordinatord.hints.seen_worker import STOPPED, TRACED, WAITS_FOR_DISK

PROC = Path("/proc")

RUNNING = "running"
SLEEPING = "sleeping"

STATES = {
    "R": RUNNING,
    "S": SLEEPING,
    "D": WAITS_FOR_DISK,
    "T": STOPPED,
    "t": TRACED,
    "Z": "ended",
    "X": "ended",
    "I": "idle",
}
"""The states of proc_pid_stat(5), in words."""

HALTED = frozenset({STOPPED, TRACED, "ended"})
"""The states of a process that reacts to nothing."""

STAT_STATE, STAT_PARENT, STAT_SESSION, STAT_FLAGS = 0, 1, 3, 6
"""Fields of /proc/PID/stat, see `stat_fields`."""

_STAT_TIMES = slice(11, 15)
"""The fields of /proc/PID/stat with CPU times, those of ended children included."""

_IO_COUNTERS = frozenset({"rchar", "wchar", "read_bytes", "write_bytes"})
"""The counters of /proc/PID/io to add up. The first two change at the end of a system call, the others during it."""

_FUSE = re.compile(r"request_wait_answer|.*fuse_")
"""The kernel functions in which a process waits for a file system that another program serves."""

_THREADS_MAX = 1_024
"""The limit of threads of a process: several for each CPU of a large host."""

_CHILDREN_MAX = 64
"""The limit of descendants that count as the worker, such as the processes that load its data."""

SOCKET_ADDRESS, SOCKET_PEER, SOCKET_STATE, SOCKET_INODE = 1, 2, 3, 9
"""Columns of `sockets`: the own and the peer's address with its port, the state, and the inode."""


class ProcessState(Struct, frozen=True):
    """A sample of one process."""

    state: str
    """One of `STATES`, or the kernel's letter."""
    waits_in: str
    """The kernel function in which its main thread waits; empty if it does not wait, or if the kernel hides it."""
    cpu_s: float
    """The CPU time of all of its threads and its descendants."""
    io_bytes: int
    """The bytes that the process and its descendants have read and written, if /proc shows them."""
    wants_cpu: bool
    """Whether a thread of the process or its descendants is runnable, even if it gets little CPU time."""
    waits_for_disk: bool
    """Whether a thread of the process or its descendants waits for a disk or a network file system."""


def sample_process(pid: int, proc: Path = PROC) -> ProcessState | None:
    """Sample a process; None if it is gone."""
    fields = stat_fields(pid, proc)
    if not fields:
        return None
    letter, waits_in = fields[STAT_STATE], read_if_there(proc / str(pid) / "wchan")
    ticks, io_bytes, threads = 0, 0, set[str]()
    for descendant in with_descendants(pid, proc):
        threads |= _thread_states(descendant, proc)
        ticks += sum(map(int, stat_fields(descendant, proc)[_STAT_TIMES]))
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


def is_stopped(pid: int, proc: Path = PROC) -> bool:
    """Whether a signal, but not a debugger, has stopped a process."""
    return stat_fields(pid, proc)[:1] == ["T"]


def _io_bytes(pid: int, proc: Path) -> int:
    counters = (line.partition(": ") for line in read_if_there(proc / str(pid) / "io").splitlines())
    return sum(int(number) for name, _, number in counters if name in _IO_COUNTERS)


def _threads(pid: int, proc: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in islice(os.scandir(proc / str(pid) / "task"), _THREADS_MAX)]
    except OSError:
        return []


def _thread_states(pid: int, proc: Path) -> set[str]:
    stats = (read_if_there(thread / "stat") for thread in _threads(pid, proc))
    return {state for stat in stats for state in stat.rpartition(")")[2].split()[:1]}


def stat_fields(pid: int, proc: Path = PROC) -> list[str]:
    """Return the fields of /proc/PID/stat after the name (proc_pid_stat(5)); an empty list if the process is gone."""
    return read_if_there(proc / str(pid) / "stat").rpartition(")")[2].split()


def with_descendants(pid: int, proc: Path = PROC) -> list[int]:
    """Return a process and its descendants; only the process where the kernel does not show children."""
    pids = [pid]
    for parent in pids:  # the loop extends the list
        for thread in _threads(parent, proc):
            if len(pids) <= _CHILDREN_MAX:
                pids += map(int, read_if_there(thread / "children").split())
    return pids


def open_files(process: Path) -> Iterator[Path]:
    """Yield the visible open files of a process. After the end of the main thread, its other threads have the files."""
    with suppress(OSError):
        for descriptor in list((process / "fd").iterdir()) or _files_of_threads(process):
            with suppress(OSError):
                yield descriptor.readlink()


def _files_of_threads(process: Path) -> Iterator[Path]:
    # `Path.glob` would raise where a thread ends meanwhile.
    return map(Path, iglob(f"{escape(str(process))}/task/*/fd/*"))  # noqa: PTH207


def sockets(process: Path, *tables: str) -> Iterator[list[str]]:
    """Yield the columns of each socket in these tables of /proc/PID/net, such as `tcp6` (proc_pid_net(5))."""
    for table in tables:
        for line in read_if_there(process / "net" / table).splitlines()[1:]:
            yield line.split()


def read_if_there(path: Path) -> str:
    """Return the text of a kernel file; empty if the file is gone or not readable."""
    try:
        with path.open("rb", buffering=0) as file:  # a sample reads hundreds of files: `read_text` takes twice as long
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def read_number(path: Path) -> int | None:
    """Return the number in a kernel file; None for another text, and if the file is gone or not readable."""
    try:
        return int(read_if_there(path))
    except ValueError:
        return None


def state_between(before: ProcessState | None, after: ProcessState | None) -> str:
    """Return the state of a process by two samples, since other threads may work while its main thread sleeps.

    It is running if it was runnable in both samples, even if it got little CPU time on a busy host.
    """
    if before is None or after is None:
        return "" if after is None else after.state
    if after.state != SLEEPING:
        return after.state
    if before.wants_cpu and after.wants_cpu:
        return RUNNING
    return WAITS_FOR_DISK if before.waits_for_disk and after.waits_for_disk else after.state


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal, which would otherwise end it."""
    lines = read_if_there(Path(f"/proc/{pid}/status")).splitlines()
    caught = next((int(line.partition(":")[2], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signum - 1) & 1)
