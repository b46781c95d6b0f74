"""Unix sockets at which workers connect to their node: packets, from processes of this user alone."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

BACKLOG = 128
"""Connections that wait to be accepted: more than the workers of a node, which connect at one time."""

SHORT_S = 1.0
"""How long nobody is accepted where the system has refused it, as it does while it is short of descriptors: those who
wait show up again at once, and would be tried without a pause."""

_PATH_BYTES_MAX = 107
"""The longest path of a Unix socket (unix(7))."""

_CREDENTIALS = struct.Struct("3i")
"""The process id, the user and the group of a peer, `struct ucred` in unix(7)."""


class WorkerSocket:
    """A socket that listens until it is closed; all methods are for the running event loop."""

    def __init__(self, folder: Path, name: str, on_connection: Callable[[socket.socket, int], None]) -> None:
        """Listen under a name in a folder. Raises `OSError`.

        `on_connection` gets each connection, which does not block and is its own from then on, and the id of the
        process that made it.
        """
        self._on_connection = on_connection
        self._loop = asyncio.get_running_loop()
        self._resuming: asyncio.TimerHandle | None = None
        self._folder: int | None = None
        """Open where the path would be too long, so that a short one leads to the folder."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        path = folder / name
        try:
            if len(os.fsencode(path)) > _PATH_BYTES_MAX:
                self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                path = Path(f"/proc/{os.getpid()}/fd/{self._folder}/{name}")
            path.unlink(missing_ok=True)  # of a round before
            self._listener.bind(str(path))
            self._listener.listen(BACKLOG)
        except BaseException:
            self.close()
            raise
        self.path = str(path)
        """Where workers connect."""
        self._resume()

    def close(self) -> None:
        """Accept no more connections; those that were accepted stay."""
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the caller has gone
            return
        except OSError:
            self._loop.remove_reader(self._listener)
            self._resuming = self._loop.call_later(SHORT_S, self._resume)
            return
        pid, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)
        self._on_connection(connection, pid)
