"""Reads and writes error files, in torch's format.

`workerlib.record` or torch's `@record` writes one when a worker's script fails. The node writes the root cause into the
file TORCHELASTIC_ERROR_FILE, for a scheduler.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from coordinatord.hints.failure_status import failure_status
from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.messages import Report

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
    """Parse an error file; return None if it is missing, unreadable, or without an error.

    The file is not trusted: it may have any type, size and content. Never raises, never waits for a writer.
    """
    try:
        content = json.loads(_read_bounded(path))
    except (OSError, ValueError, RecursionError):
        return None
    message = _fields(content).get("message")
    extra = _fields(_fields(message).get("extraInfo"))
    text = message if isinstance(message, str) else _text(_fields(message).get("message"))
    found = RecordedError(text, _text(extra.get("py_callstack")), extra.get("final") is True)
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


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def write(path: Path, report: Report, now: float) -> str | None:
    """Write the file, or replace an older one; `now` is in seconds since 1970.

    Never raises: returns a line for the user if the file cannot be written, else None.
    """
    text = json.dumps(content(report, now))
    try:
        _replace(path, text)
    except OSError as error:
        return f"the error file {path} (TORCHELASTIC_ERROR_FILE) cannot be written: {error.strerror or error}"
    return None


def content(report: Report, now: float) -> dict[str, Any]:
    """Return the content of the file; torch reads `message`, `errorCode`, `py_callstack` and `timestamp`."""
    failure, shown = report.failure, failure_status(report)
    how = describe_exit(failure.exit_code, left=failure.left)
    extra = {
        "py_callstack": "\n".join(failure.last_lines),  # a traceback, the end of stderr, or the stack of a hung worker
        "timestamp": str(int(now - failure.age_s)),
        "round": report.round,
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "node": report.node,
        "hostname": report.host,
        "pid": failure.pid,
        "how": how,
        "found_out": failure.message,
        "hint": shown.hint,
        "consequences": [
            {"node": other.node, "rank": other.rank, "exit_code": other.exit_code} for other in report.consequences
        ],
        "consequences_count": report.consequences_count,
        "shared_by": shown.shared_by,
        "ended_early": shown.before,  # a sentence about workers that had exited with 0
        "behind": shown.behind,  # a sentence about workers at earlier steps, if the failed one waited for others
        "log": failure.log,
    }
    return {
        "message": {
            # A worker that left early explains torch's error in the others, so it comes first. Without an error, `how`
            # precedes `failure.message`, which after a SIGKILL says only who sent the signal.
            "message": shown.left_early or failure.error or ": ".join(filter(None, (how, failure.message))),
            "errorCode": failure.exit_code,
            "extraInfo": extra,
        }
    }


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, or in place if only the file itself is writable (/dev/termination-log)."""
    try:
        # Cut, since a long name must not get longer than a file system allows (255 bytes).
        fd, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    except OSError:
        path.write_text(text)
        return
    temporary = Path(name)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        temporary.chmod(0o644)  # the scheduler may be another user
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        path.write_text(text)
