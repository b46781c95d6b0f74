"""Reads the error file of a worker, as `workerlib.record` and torch's `@record` write it.

The file is not trusted: it may be of any kind, size and content. If it is no proper error file, it is ignored.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from coordinatord.protocol.frozen_class import frozen

FILE_BYTES_MAX = 4 * 1024 * 1024
"""The largest file that is read: a call stack takes some KiB, and an exception may quote data."""


@frozen
class Recorded:
    """The content of the file; each part may be empty."""

    message: str
    """The exception, on as many lines as it has."""
    call_stack: str
    """The traceback as Python writes it."""
    final: bool = False
    """Whether no restart mends the error, as `workerlib` says of it."""


def read(path: Path) -> Recorded | None:
    """Return the content of an error file; None if it has none. Never raises, never waits for a writer."""
    try:
        content = json.loads(_read_bounded(path))
    except (OSError, ValueError, RecursionError):
        return None
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        extra = extra if isinstance(extra, dict) else {}
        found = Recorded(_text(message.get("message")), _text(extra.get("py_callstack")), extra.get("final") is True)
    else:
        found = Recorded(_text(message), "")
    return found if found.message or found.call_stack else None


def _read_bounded(path: Path) -> str:
    """Return the whole of a plain file. Raises `OSError` or `ValueError` for all else."""
    if not stat.S_ISREG(os.lstat(path).st_mode):  # opening a device may have side effects
        raise ValueError(f"{path} is not a plain file")
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123  # a descriptor has no path
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # it was exchanged meanwhile
            raise ValueError(f"{path} is not a plain file")
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return content.decode(errors="replace")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
