"""Shuts down the connections of gloo's process groups, so that a thread that waits in a collective gets an error.

A process that is to go on in the next round has to come out of a collective whose peer is gone. gloo has no abort
(torch 2.13: `abort` and `shutdown` of its groups do nothing), so it would wait until the timeout. If reads from its
connection fail, it gets the error within a millisecond.

gloo does not show its descriptors. This module finds them: they are the connected TCP sockets that are there when a
group has been made and were not there before, except for those that Python makes, which are the script's. Sockets are
told apart by their inodes, since a descriptor may be used again. Connections that another native library makes just
then are included by mistake. Listening sockets are left out, because gloo ends the process if one of them fails.

No write of gloo may fail, here or at a peer: gloo would forget the operation, and its thread would wait until the
timeout (torch 2.13, gloo/transport/tcp/pair.cc: `write` leaves EPIPE and ECONNRESET to the next read, and
`signalException` skips unbound buffers that are being sent). So only one direction of a connection is shut down, and
the connection stays open until all workers are out of the round.

Linux only, standard library only.
"""

from __future__ import annotations

import _socket  # `GroupSockets` wraps the constructor of `socket.socket`, and not of `_socket.socket`
import functools
import os
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_FOLDER = Path("/proc/self/fd")

_TCP = {socket.AF_INET, socket.AF_INET6}


def _sockets() -> dict[str, int]:
    """Return a descriptor of each socket of this process, by the socket's inode as /proc shows it."""
    sockets = {}
    for link in _FOLDER.iterdir():
        with suppress(OSError):  # it was closed meanwhile
            target = str(link.readlink())
            if target.startswith("socket:"):
                sockets[target] = int(link.name)
    return sockets


class GroupSockets:
    """The connections of the process groups of one round. One thread makes groups, another one may shut them down."""

    def __init__(self) -> None:
        self._inodes: set[str] = set()
        """The inodes of the sockets that appeared while groups were made; `shut` leaves out those of the script."""
        self._shut: dict[str, _socket.socket] = {}
        """The connections that were shut down, by inode; each has a second descriptor, since gloo closes its own."""
        self._before: set[str] | None = None
        """The inodes of the sockets before the group that is being made now; None if none is being made."""
        self._begun: list[weakref.ref[socket.socket]] = []
        """The script's sockets begun while a group was made: `shut` may see their descriptors before `_made` has
        them."""
        self._made: set[str] = set()
        """The inodes of these sockets, once they are made: an object may lose its descriptor later, by `detach`."""
        self._original: Callable[..., None] | None = None
        """Python's `socket.socket.__init__`, while `_replacement` is in its place."""
        self._replacement: Any = None

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Record the sockets that are new at the end of the block, which makes a group.

        A nested block changes nothing.
        """
        if self._before is not None:
            yield
            return
        self._record_sockets_of_python()
        self._before = set(_sockets())
        try:
            yield
        finally:
            self._inodes |= _sockets().keys() - self._before
            self._before = None

    def _record_sockets_of_python(self) -> None:
        """Record each socket that Python makes, in any thread, until `close`: these are the script's.

        Sockets made after the block of `gathering` count too: `accept` makes the object later than the descriptor.
        """
        if self._original is not None:
            return
        original = self._original = socket.socket.__init__

        @functools.wraps(original)
        def record(made: socket.socket, *args: Any, **kwargs: Any) -> None:
            if self._before is not None:
                self._begun.append(weakref.ref(made))
            original(made, *args, **kwargs)
            if self._original is None:  # `close` was called meanwhile
                return
            if self._before is not None:
                self._made.add(_inode(made.fileno()))
            else:  # the block may have ended before, and have counted the descriptor as gloo's
                self._inodes.discard(_inode(made.fileno()))

        self._replacement = record
        socket.socket.__init__ = record  # type: ignore[assignment, method-assign]

    def shut(self, side: int = socket.SHUT_RD) -> int:
        """Shut down one direction of the connections, so that reads fail; return how many were shut down.

        With SHUT_RD the reads of this process fail. With SHUT_WR those of the peers fail; use it only when the thread
        has left its collective, since gloo's writes must not fail.

        Closed connections are left out, even if their descriptors are in use again. Within the block of `gathering`,
        this shuts down the connections so far: call it again until the block is left.
        """
        before, shut_before = self._before, len(self._shut)
        sockets = _sockets()
        begun = filter(None, (reference() for reference in list(self._begun)))
        left_out = {_inode(each.fileno()) for each in begun} | self._made | self._shut.keys()
        for inode, fd in sockets.items():
            is_of_group = inode in self._inodes or (before is not None and inode not in before)
            if is_of_group and inode not in left_out and (own := _shut(fd, inode, side)) is not None:
                self._shut[inode] = own
        return len(self._shut) - shut_before

    def close(self) -> None:
        """Close the connections, once all workers are out of the round, and restore Python's constructor."""
        while self._shut:
            self._shut.popitem()[1].close()
        original, self._original = self._original, None
        # Other code may have replaced it since.
        if original is not None and socket.socket.__init__ is self._replacement:
            socket.socket.__init__ = original  # type: ignore[method-assign]


def _shut(fd: int, inode: str, side: int) -> _socket.socket | None:
    """Shut down one direction of a socket; return it with another descriptor, which stays open.

    None if the descriptor now belongs to another file, or to no TCP connection.
    """
    try:
        own = _socket.socket(fileno=os.dup(fd))
    except OSError:
        return None
    try:
        is_same = _inode(own.fileno()) == inode
        is_tcp = own.family in _TCP and own.type == socket.SOCK_STREAM
        if is_same and is_tcp and not own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            own.shutdown(side)
            return own
    except OSError:  # it is not connected
        pass
    own.close()
    return None


def _inode(fd: int) -> str:
    """Return the inode of a descriptor as /proc shows it; empty if there is no such descriptor."""
    try:
        return str((_FOLDER / str(fd)).readlink())
    except OSError:
        return ""
