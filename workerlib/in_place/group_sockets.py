"""The connections of gloo's process groups, and how to end them: what waits for a peer in a collective fails at once.

gloo has no abort (torch 2.13: `abort` and `shutdown` of its groups do nothing), so a worker whose peer is stopped waits
until the timeout. A connection in which there is nothing more to read lets it fail within a millisecond. Nobody tells
which descriptors are gloo's: they are the connected TCP sockets that are there after a group was made, and were not
before, without those that Python has made meanwhile. What another native library connects just then is taken along.
Sockets that listen are left alone, because gloo ends the process if one of them fails.

No write of gloo's may fail, here or at a peer: it then forgets the operation, tells whoever waits for it nothing of the
end of the connection, and that one waits until the timeout (torch 2.13, gloo/transport/tcp/pair.cc: `write` leaves
EPIPE and ECONNRESET to the next read, and `signalException` passes over unbound buffers that are being sent). So only
one side of a connection is shut, and it stays open until all workers are out of the round.

Linux only, standard library only.
"""

from __future__ import annotations

import functools
import os
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_FOLDER = Path("/proc/self/fd")

_TCP = {socket.AF_INET, socket.AF_INET6}


def _sockets() -> dict[str, int]:
    """Return the sockets of this process: their inodes as /proc writes them, each with a descriptor."""
    sockets = {}
    for link in _FOLDER.iterdir():
        with suppress(OSError):  # it was closed meanwhile
            target = str(link.readlink())
            if target.startswith("socket:"):
                sockets[target] = int(link.name)
    return sockets


class _Own(socket.socket):
    """A socket of this module's own, which is none of the script's, whatever `_noting` has put in place."""

    __init__ = socket.socket.__init__


@contextmanager
def _noting(made: list[weakref.ref[socket.socket]]) -> Iterator[None]:
    """Note each socket that Python makes in the block, in any thread, before it has a descriptor."""
    original = socket.socket.__init__

    @functools.wraps(original)
    def note(self: socket.socket, *args: Any, **kwargs: Any) -> None:
        made.append(weakref.ref(self))
        original(self, *args, **kwargs)

    socket.socket.__init__ = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        socket.socket.__init__ = original  # type: ignore[method-assign]


class GroupSockets:
    """The connections that came with the process groups of one round.

    One thread makes groups, another may shut them.
    """

    def __init__(self) -> None:
        """Begin with no connection."""
        self._inodes: set[str] = set()
        self._shut: dict[str, socket.socket] = {}
        """Those that were shut, each with a descriptor of its own: gloo closes the one that it has."""
        self._before: set[str] | None = None
        """The sockets that were there before the group that is being made now."""
        self._made: list[weakref.ref[socket.socket]] = []
        """The sockets that Python has made while groups were made: they are the script's."""

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Take the sockets that are new at the end of the block for connections of the group that is made in it.

        A block in such a block changes nothing.
        """
        if self._before is not None:
            yield
            return
        self._before = set(_sockets())
        try:
            with _noting(self._made):
                yield
        finally:
            self._inodes |= _sockets().keys() - self._before
            self._before = None

    def shut(self, side: int = socket.SHUT_RD) -> int:
        """Let whoever reads in the connections find their end, here or at the peer; return how many there were.

        The peer does if `side` is SHUT_WR, for a thread that is out of its collective, so that it writes no more.

        Those that were closed since then are gone, also where their descriptor has another use by now. In the middle of
        the block it is about the connections that are there so far: call it again until the block is left.
        """
        number = 0
        before = self._before
        sockets = _sockets()
        for made in filter(None, (reference() for reference in list(self._made))):
            sockets.pop(_inode(made.fileno()), None)
        for inode, fd in sockets.items():
            came = inode in self._inodes or (before is not None and inode not in before)
            if came and inode not in self._shut and (own := _shut(fd, inode, side)) is not None:
                self._shut[inode] = own
                number += 1
        return number

    def close(self) -> None:
        """Let the connections go, when all workers are out of the round. No other thread may use this any more."""
        for own in self._shut.values():
            own.close()
        self._shut.clear()


def _shut(fd: int, inode: str, side: int) -> socket.socket | None:
    """Shut one side of a socket; return a descriptor of it that stays open.

    None if this descriptor is not that socket any more, or is no TCP connection.
    """
    try:
        own: socket.socket = _Own(fileno=os.dup(fd))
    except OSError:
        return None
    try:
        is_same = _inode(own.fileno()) == inode
        is_tcp = own.family in _TCP and own.type is socket.SOCK_STREAM
        if is_same and is_tcp and not own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            own.shutdown(side)
            return own
    except OSError:  # it is not connected
        pass
    own.close()
    return None


def _inode(fd: int) -> str:
    """Return what /proc writes of a descriptor; empty if there is none."""
    try:
        return str((_FOLDER / str(fd)).readlink())
    except OSError:
        return ""
