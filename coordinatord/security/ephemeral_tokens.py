"""Removes the token files of killed `--ephemeral` coordinators: such tokens end with their process.

A killed process cannot remove its file. A user's nodes that find a token reject every coordinator without TLS, so that
a stale file would lock them out for ever. The file names its process, so a later start on the same host can remove it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from msgspec import Struct

from coordinatord.runtime.boot import boot_id
from coordinatord.runtime.logs import fields
from coordinatord.runtime.private_files import PrivateFileError, read_private, tokens_directory

log = logging.getLogger(__name__)

FILES_MAX = 1_000
"""The limit of checked files: a user has those of a few coordinators."""

_LINE = re.compile(r"# They end with the process (?P<pid>\d+) (?P<began>\d+) (?P<host>\S+)\n")

_STATE, _BEGAN = 0, 19
"""Fields of /proc/PID/stat after the name: the state, and the ticks from the boot to the start (proc_pid_stat(5))."""

_ENDED = frozenset({"Z", "X"})
"""The states of an ended process until its parent waits for it."""


class Process(Struct, frozen=True):
    """The identity of a process: unlike a PID, it is never reused."""

    pid: int
    began: int
    """When it began, in clock ticks since the boot."""
    host: str
    """The boot id of its host, and its PID namespace."""

    @property
    def line(self) -> str:
        """The line of a token file that names the process of its tokens."""
        return f"# They end with the process {self.pid} {self.began} {self.host}\n"

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; False if that cannot be known, for a process of another host or an earlier boot."""
        return self.host == _this_host() and _began(self.pid) != self.began


def this_process() -> Process | None:
    """Return this process; None if /proc does not describe it."""
    pid = os.getpid()
    began, host = _began(pid), _this_host()
    return None if began is None or not host else Process(pid, began, host)


def remove_files_of_ended(environ: Mapping[str, str]) -> None:
    """Remove the token files of this user's processes that have ended."""
    try:
        paths = list(islice(tokens_directory(environ).iterdir(), FILES_MAX))
    except (OSError, PrivateFileError):
        return  # there are none, or this user may not read them
    for path in paths:
        try:
            found = _LINE.search(read_private(path) or "")
            if found and Process(int(found["pid"]), int(found["began"]), found["host"]).has_ended:
                path.unlink(missing_ok=True)
                text = "the coordinator of the tokens in %s was killed: the file is removed"
                log.info(text, path, extra=fields("tokens_removed"))
        except (OSError, PrivateFileError) as error:
            log.debug("%s stays: %s", path, error)


def _began(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the boot; None if there is none."""
    try:
        parts = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if parts[_STATE] in _ENDED else int(parts[_BEGAN])


def _this_host() -> str:
    """Return this process's `Process.host`; empty if it is not known."""
    boot = boot_id()
    return boot and f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
