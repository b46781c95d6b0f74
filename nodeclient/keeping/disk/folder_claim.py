"""Claims the folder of a job's steps for one run, since two runs that write there would resume from each other's steps.

The nodes of a run hold a shared lock on a file that names the run. To write the name of another run into it, a
node of that run needs the exclusive lock, and so waits until no process of the first run is left. The kernel or the
file server releases a lock when its process ends. All of this may block for ever, so it is for a daemon thread.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec.structs import asdict

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import Name
from coordinatord.protocol.schema import SchemaError, Strict, check, printable
from nodeclient.keeping.disk.durable_file import make_folder

CLAIM = "claim.json"
"""The name of the locked file. It is never deleted, since a process could hold the lock of a file that is gone."""

CLAIM_MAX = 4096

RETRY_S = 0.1
"""The pause between two attempts."""


class FolderInUseError(OperationalError):
    """Another run that has not ended uses the folder; the text names the run."""


class RunAndHost(Strict, frozen=True):
    """The contents of the file: the run that uses the folder, and the host of the node that claimed it first."""

    run: Name
    host: Annotated[str, printable(255, least=1)]


class FolderClaim:
    """This process's share in the claim on a folder. It is safe for several threads."""

    def __init__(self, job: Path) -> None:
        """Begin without a share in the folder `job`, which may not be there yet."""
        self._path = job / CLAIM
        self._file: int | None = None
        self._one_at_a_time = threading.Lock()
        self.run = ""
        """The run for which the folder was last claimed; empty before the first one."""

    def acquire(self, run: str, patience_s: float) -> None:
        """Claim the folder for a run, or check that the run still has the claim; wait `patience_s` for another to end.

        Raises `FolderInUseError`, and `OSError` if nothing can be locked there.
        """
        until = time.monotonic() + patience_s
        with self._one_at_a_time:
            while (owner := self._attempt(run)) is not None:
                if time.monotonic() >= until:
                    raise FolderInUseError(
                        f"{self._path.parent} is in use by another run of this job: {owner}. Give each job a --job-id"
                        " or a --persist directory of its own, or end that run first"
                    )
                time.sleep(RETRY_S)  # noqa: TID251 - no event tells that a claim on another host has ended
            self.run = run

    def release(self) -> None:
        """Release the share in the claim. Waits for an `acquire` in progress, which uses the descriptor."""
        with self._one_at_a_time:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _attempt(self, run: str) -> str | None:
        """Try to claim the folder; return None on success, else a text that names its run.

        The name is read before there is a lock, and once more with it: if thousands of nodes that begin a run together
        read it with a shared lock, none of them would get the exclusive one.
        """
        file = self._open()
        owner = _read(file)
        try:
            if not _names(owner, run):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # only where no other process has a share
                if not _names(_read(file), run):
                    text = json.dumps(asdict(RunAndHost(run, socket.gethostname()))).encode()
                    length = os.pwrite(file, text, 0)
                    os.truncate(file, length)
            # flock(2) releases the exclusive lock before it takes the shared one. In between, a process of another run
            # may have claimed the folder.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            owner = _read(file)
        except BlockingIOError:
            pass  # a process of another run has a share, or is just claiming the folder
        except BaseException:
            self._close()  # after a failed write, say, other nodes of the run may still claim it
            raise
        else:
            if _names(owner, run):
                return None
        self._close()
        return "its name cannot be read" if owner is None else f"run {owner.run}, begun on host {owner.host}"

    def _open(self) -> int:
        """Return a descriptor of the present file, since the folder may have been deleted and made anew."""
        if self._file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), self._path.stat()):
                    return self._file
            self._close()
        make_folder(self._path.parent)
        # A link or a pipe in place of the file leads to an error, not to a write elsewhere or a wait without end.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o666)
        return self._file


def _names(owner: RunAndHost | None, run: str) -> bool:
    return owner is not None and owner.run == run


def _read(file: int) -> RunAndHost | None:
    """Return the contents of the file; None if it is empty or malformed. Raises `OSError`."""
    try:
        return check(json.loads(os.pread(file, CLAIM_MAX, 0)), RunAndHost, CLAIM)
    except (SchemaError, ValueError, RecursionError):
        return None
