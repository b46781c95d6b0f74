"""Reads the error file of a worker, which `workerlib.record` or torch's `@record` writes when the script fails."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from msgspec import Struct

FILE_BYTES_MAX = 4 * 1024 * 1024
"""The limit of a file: a call stack takes some KiB, and an exception may quote data."""


class RecordedError(Struct, frozen=True):
    """The content of an error file; each part may be empty."""

    message: str
    """The exception, on all of its lines."""
    call_stack: str
    """The traceback, as by Python."""
    final: bool = False
    """Whether `workerlib` declares that a restart would not help."""


def read_error_file(path: Path) -> RecordedError | None:
    """Parse an error file; return None without content.

    The file is not trusted: it may have any type, size and content. Never raises, never waits for a writer.
    """
    try:
        content = json.loads(_read_bounded(path))
    except (OSError, ValueError, RecursionError):
        return None
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        extra = extra if isinstance(extra, dict) else {}
        found = RecordedError(
            _text(message.get("message")), _text(extra.get("py_callstack")), extra.get("final") is True
        )
    else:
        found = RecordedError(_text(message), "")
    return found if found.message or found.call_stack else None


def _read_bounded(path: Path) -> str:
    """Return the whole of a regular file. Raises `OSError` or `ValueError` if it is anything else, or too large."""
    if not stat.S_ISREG(os.lstat(path).st_mode):  # opening a device may have side effects
        raise ValueError(f"{path} is not a plain file")
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123  # a descriptor has no path
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # it was replaced meanwhile
            raise ValueError(f"{path} is not a plain file")
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return content.decode(errors="replace")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
