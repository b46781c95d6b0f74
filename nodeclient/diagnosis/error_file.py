"""Writes the root cause into the file TORCHELASTIC_ERROR_FILE for a scheduler, in torch's format."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from coordinatord.hints.failure_status import failure_status
from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.messages import Report


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
        "py_callstack": "\n".join(failure.last_lines),
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
        "ended_early": shown.before,
        "behind": shown.behind,
        "log": failure.log,
    }
    return {
        "message": {
            # The finding needs the exit code before it: after a SIGKILL, it only names the sender.
            "message": shown.left_early or failure.error or ": ".join(filter(None, (how, failure.message))),
            "errorCode": failure.exit_code,
            "extraInfo": extra,
        }
    }


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, or in place if only the file itself is writable (/dev/termination-log)."""
    try:
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
