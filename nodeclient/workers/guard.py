"""Starts and ends the guard, the sibling process that cleans up should this nodeclient die without doing so.

What the guard does is in `guard_process`. It has a session of its own and ignores the usual signals. All that binds it
to the nodeclient is a pipe: the kernel closes it however the nodeclient ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from nodeclient.workers.process_tree import MARK_VARIABLE, await_ends
from nodeclient.workers.syscalls import pidfd_open

CLOSE_TIMEOUT_S = 5.0
"""After a clean end the guard finds nothing and exits in milliseconds; this leaves room for an overloaded host."""

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from nodeclient.workers.guard_process import main; main()"
"""The path is appended, so that the standard library's modules come before any of that name beside the package."""


class Guard:
    """The guard of one mark, which also removes a directory; it must be up before the first worker starts.

    Workers must not inherit the write end of its pipe, or it would never see the end: `subprocess` with its default
    `close_fds=True` sees to that.
    """

    def __init__(self, mark: str, folder: Path) -> None:
        self._mark = mark
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The guard's process id; None before `start` and after `close`."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the guard, or another one if the last has died; a no-op while it lives.

        To be called before every start of workers. Raises `OSError` if no process can be started.
        """
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._pipe(self._process).close()
            self._process = None
        # It must not carry a mark, its own or that of an outer nodeclient: this one is to be guarded even from that.
        environ = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
        package_parent = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(  # noqa: S603  # this very Python, no words of a user's
            # Isolated and without site: nothing that the user installed can slow it down or break it.
            [sys.executable, "-I", "-S", "-c", _PROGRAM, package_parent],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environ,
            cwd="/",
            start_new_session=True,
        )
        self._pipe(self._process).write(f"{self._mark}\n".encode() + os.fsencode(self._folder) + b"\n")

    def close(self) -> None:
        """End the guard, which kills what is left of the workers; a no-op if there is none."""
        if self._process is None:
            return
        self._pipe(self._process).close()
        # Popen's own wait looks again after 1, 2, 4 ... 32 ms, which was half of the time that the end of a job took.
        pidfd = pidfd_open(self._process.pid)
        kills_on = await_ends({pidfd}, time.monotonic() + CLOSE_TIMEOUT_S)
        os.close(pidfd)
        if kills_on:  # which it does when this process is gone as well
            self._process.returncode = 0  # keeps Popen from warning that it is left to itself
        else:
            self._process.wait()
        self._process = None

    @staticmethod
    def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
        assert process.stdin is not None  # noqa: S101  # it was started with stdin=PIPE
        return process.stdin
