"""Reads from the kernel's log how much memory a process held that the OOM killer ended, if the log is readable."""

from __future__ import annotations

import os
import re
from pathlib import Path

KMSG = Path("/dev/kmsg")

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The namespace whose process ids the log has (PROC_PID_INIT_INO in the kernel)."""

RECORDS_MAX = 100_000
"""The most records that are read, more than the largest ring buffer of a kernel holds."""

RECORD_BYTES = 8_192
"""The size of one read, which must have room for a whole record (CONSOLE_EXT_LOG_MAX in the kernel)."""

_KILLED = re.compile(
    r"Killed process (?P<pid>\d+) \(.*?anon-rss:(?P<anon>\d+)kB(?:, file-rss:\d+kB, shmem-rss:(?P<shmem>\d+)kB)?"
)


def memory_of_killed(pid: int, root: Path = Path("/"), kmsg: Path = KMSG) -> int | None:
    """Return the bytes that a process held when the OOM killer ended it; None if the log does not show that."""
    try:
        if str((root / "proc/self/ns/pid").readlink()) != FIRST_PID_NAMESPACE:
            return None
        fd = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    size = None
    try:
        for record in _records(fd):
            if (killed := _KILLED.search(record)) and int(killed["pid"]) == pid:
                size = (int(killed["anon"]) + int(killed["shmem"] or 0)) * 1024
    finally:
        os.close(fd)
    return size


def _records(fd: int) -> list[str]:
    """Return the lines that the log holds now, the oldest first."""
    read = bytearray()
    for _ in range(RECORDS_MAX):
        try:
            record = os.read(fd, RECORD_BYTES)
        except BrokenPipeError:
            continue  # the next record was overwritten; reading goes on after it
        except OSError:
            break  # there are no more records, or this process may not read them
        if not record:
            break
        read += record
    return read.decode(errors="replace").splitlines()
