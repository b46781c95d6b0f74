"""Reads the kernel's log, if this process may, and finds the errors of GPUs in it (NVIDIA's Xids).

`diagnosis.oom` finds the OOM killer's victims in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

from nodeclient.core.host_health import Xid
from nodeclient.host.devices import THIS_HOST, Host

RECORDS_MAX = 100_000
"""The limit of records to read, more than the largest ring buffer of a kernel has."""

RECORD_BYTES = 8_192
"""The size of one read, which fits a whole record (CONSOLE_EXT_LOG_MAX in the kernel)."""

_XID = re.compile(r"\d+,(?P<number>\d+),.*;NVRM: Xid \((?:PCI:)?(?P<gpu>.*?)\): (?P<code>\d+),")
"""A record of the NVIDIA driver, after the log's own fields: priority, number, microseconds and flags."""


def read_records(host: Host = THIS_HOST) -> list[str]:
    """Return the lines of the present records, oldest first; none if this process may not read them. Never raises.

    Each read of the device returns the next record, from the oldest on, and every reader gets all of them.
    """
    read = bytearray()
    with suppress(OSError), open(host.devices / "kmsg", "rb", buffering=0, opener=_open_without_waiting) as file:
        for _ in range(RECORDS_MAX):
            with suppress(BrokenPipeError):  # the next record was overwritten: reading continues after it
                record = file.read(RECORD_BYTES)
                if not record:  # None if the log has no more records, and empty at the end of a file
                    break
                read += record
    return read.decode(errors="replace").splitlines()


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def xids(records: Iterable[str]) -> list[Xid]:
    """Return the errors of GPUs among lines of the log, oldest first."""
    found = map(_XID.match, records)
    return [Xid(int(xid["number"]), int(xid["code"]), xid["gpu"]) for xid in found if xid]
