"""The connections of gloo's process groups, and how to end them: what waits for a peer in a collective fails at once.

gloo has no abort (torch 2.13: `abort` and `shutdown` of its groups do nothing), so a worker whose peer is stopped waits
until the timeout. A connection that is shut down lets it fail within a millisecond. Nobody tells which descriptors are
gloo's: they are the connected sockets that are there after a group was made, and were not before. Sockets that listen
are left alone, because gloo ends the process if one of them fails.

Linux only, standard library only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = Path("/proc/self/fd")


def _sockets() -> dict[str, int]:
    """Return the sockets of this process: their inodes as /proc writes them, each with a descriptor."""
    found = {}
    for link in _FOLDER.iterdir():
        with suppress(OSError):  # it was closed meanwhile
            target = str(link.readlink())
            if target.startswith("socket:"):
                found[target] = int(link.name)
    return found


class GroupSockets:
    """The connections that came with the process groups of one round.

    One thread makes groups, another may shut them.
    """

    def __init__(self) -> None:
        """Begin with no connection."""
        self._inodes: set[str] = set()
        self._ended: set[str] = set()
        """The connections that were shut down."""
        self._before: set[str] | None = None
        """The sockets that were there before the group that is being made now."""

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Take the sockets that are new at the end of the block for connections of the group that is made in it.

        Another thread that connects meanwhile would have its connection taken along: make groups before such threads
        work, as `init` does.
        """
        self._before = set(_sockets())
        try:
            yield
        finally:
            self._inodes |= _sockets().keys() - self._before
            self._before = None

    def shut(self) -> int:
        """Shut the connections down, in both directions; return how many there were.

        Those that were closed since then are gone, also where their descriptor has another use by now. In the middle of
        the block it is about the connections that are there so far: call it again until the block is left.
        """
        number = 0
        before = self._before
        for inode, fd in _sockets().items():
            came = inode in self._inodes or (before is not None and inode not in before)
            if came and inode not in self._ended and _shut(fd, inode):
                self._ended.add(inode)
                number += 1
        return number


def _shut(fd: int, inode: str) -> bool:
    """Shut a socket down, if this descriptor is still that socket, and is connected."""
    try:
        copy = socket.socket(fileno=os.dup(fd))
    except OSError:
        return False
    with copy:
        try:
            same = str((_FOLDER / str(copy.fileno())).readlink()) == inode
            if not same or copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            copy.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is not connected
            return False
    return True
