"""The token files of `--ephemeral` coordinators: such tokens end with their process.

A killed process cannot remove its file. Nodes that find a token of their user reject every coordinator without TLS, so
a stale file would keep them from such coordinators for ever. So a process locks its file as long as it lives, and a
later start in the same boot of the host removes the files that nobody has locked. Files of other boots stay, since
their process may live on another host that shares the folder.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from coordinatord.runtime.boot import boot_id
from coordinatord.runtime.logs import fields
from coordinatord.runtime.private_files import PrivateFileError, read_private, tokens_directory, write_private

log = logging.getLogger(__name__)

FILES_MAX = 1_000
"""The limit of checked files: a user has those of a few coordinators."""

_LINE = re.compile(r"# They end with their coordinator, in the boot (\S+)\n")
"""The line that names the boot of the host: other hosts that share the folder may not see the lock."""


def write_ephemeral(path: Path, text: str) -> int:
    """Write a token file; return a descriptor that locks it until it is closed. Raises `PrivateFileError`."""
    while True:
        write_private(path, f"{text}# They end with their coordinator, in the boot {boot_id()}\n")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # another start has removed the file before it was locked
        with suppress(OSError):  # without locks on this file system, no start removes the file
            fcntl.flock(handle, fcntl.LOCK_EX)  # the kernel releases it at any end of the process
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)  # as above


def remove_files_of_ended(environ: Mapping[str, str]) -> None:
    """Remove the token files of this user's processes that have ended."""
    try:
        paths = list(islice(tokens_directory(environ).iterdir(), FILES_MAX))
    except (OSError, PrivateFileError):
        return  # there are none, or this user may not read them
    for path in paths:
        try:
            boot = _LINE.search(read_private(path) or "")
            if boot is not None and boot[1] == boot_id():
                _remove_unlocked(path)
        except (OSError, PrivateFileError) as error:
            log.debug("%s stays: %s", path, error)


def _remove_unlocked(path: Path) -> None:
    """Remove a token file. Raises `OSError`, also if it is locked."""
    with path.open("r+b") as file:  # NFS locks only a file that is open for writing
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    log.info(
        "the coordinator of the tokens in %s was killed: the file is removed", path, extra=fields("tokens_removed")
    )
