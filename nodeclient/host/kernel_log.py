"""Reads the kernel's log, if this process may: the OOM killer's victims, and the errors of GPUs (NVIDIA's Xids)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from nodeclient.core.host_health import Xid

KMSG = Path("/dev/kmsg")
"""The kernel's log: each read returns one record, the oldest first, and none takes it from another reader."""

RECORDS_MAX = 100_000
"""The limit of records to read, more than the largest ring buffer of a kernel has."""

RECORD_BYTES = 8_192
"""The size of one read, which fits a whole record (CONSOLE_EXT_LOG_MAX in the kernel)."""

_XID = re.compile(r"\d+,(?P<number>\d+),.*;NVRM: Xid \((?:PCI:)?(?P<gpu>.*?)\): (?P<code>\d+),")
"""A record of the NVIDIA driver, after the log's own fields: priority, number, microseconds and flags."""


def read_records(kmsg: Path = KMSG) -> list[str]:
    """Return the present lines of the log, oldest first; none if this process may not read it. Never raises."""
    try:
        fd = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    read = bytearray()
    try:
        for _ in range(RECORDS_MAX):
            try:
                record = os.read(fd, RECORD_BYTES)
            except BrokenPipeError:
                continue  # the next record was overwritten, so reading continues after it
            except OSError:
                break  # there are no more records
            if not record:
                break
            read += record
    finally:
        os.close(fd)
    return read.decode(errors="replace").splitlines()


def xids(records: Iterable[str]) -> list[Xid]:
    """Return the errors of GPUs among lines of the log, oldest first."""
    found = map(_XID.match, records)
    return [Xid(int(xid["number"]), int(xid["code"]), xid["gpu"]) for xid in found if xid]
