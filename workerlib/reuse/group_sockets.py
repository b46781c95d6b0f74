"""The connections of gloo's process groups, and how to end them, so that a thread that waits in a collective fails.

gloo has no abort (torch 2.13: `abort` and `shutdown` of its groups do nothing), so a worker whose peer is stopped waits
until the timeout. If its connection has nothing more to read, it fails within a millisecond. gloo does not show its
descriptors. They are the connected TCP sockets that exist after a group was made and not before, without those that
Python has made meanwhile. Connections that another native library makes just then are included by mistake. Listening
sockets are left alone, because gloo ends the process if one of them fails.

No write of gloo may fail, here or at a peer: gloo would forget the operation, and the thread that waits for it would
wait until the timeout (torch 2.13, gloo/transport/tcp/pair.cc: `write` leaves EPIPE and ECONNRESET to the next read,
and `signalException` passes over unbound buffers that are being sent). So only one side of a connection is shut, and
the connection stays open until all workers are out of the round.

Linux only, standard library only.
"""

from __future__ import annotations

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
    """Return a descriptor of each socket of this process, by its inode as /proc shows it."""
    sockets = {}
    for link in _FOLDER.iterdir():
        with suppress(OSError):  # it was closed meanwhile
            target = str(link.readlink())
            if target.startswith("socket:"):
                sockets[target] = int(link.name)
    return sockets


class _Own(socket.socket):
    """A socket of this module itself, which `GroupSockets` does not take for one of the script."""

    __init__ = socket.socket.__init__


class GroupSockets:
    """The connections that came with the process groups of one round.

    One thread makes groups, another may shut them.
    """

    def __init__(self) -> None:
        """Begin with no connection."""
        self._inodes: set[str] = set()
        self._shut: dict[str, socket.socket] = {}
        """The connections that were shut, each with another descriptor: gloo closes its own."""
        self._before: set[str] | None = None
        """The sockets that existed before the group that is being made now."""
        self._begun: list[weakref.ref[socket.socket]] = []
        """The sockets that Python has begun to make while groups were made: they are those of the script."""
        self._made: set[str] = set()
        """The inodes of those that it has made. The object may hand its descriptor on."""
        self._original: Callable[..., None] | None = None
        """Python's own way to make a socket, while `_replacement` is in its place."""
        self._replacement: Any = None

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Add the sockets that are new at the end of the block: they are the connections of the group made in it.

        A nested block changes nothing. From the first block on, the sockets that Python makes are recorded until
        `close`.
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
        """Record each socket that Python makes, in any thread: they are the script's.

        The kernel may have made one within a block that Python makes an object of only later, as `accept` does. So this
        goes on after the block.
        """
        if self._original is not None:
            return
        original = self._original = socket.socket.__init__

        @functools.wraps(original)
        def record(made: socket.socket, *args: Any, **kwargs: Any) -> None:
            if self._before is not None:
                self._begun.append(weakref.ref(made))
            original(made, *args, **kwargs)
            if self._original is None:
                return
            if self._before is not None:
                self._made.add(_inode(made.fileno()))
            else:
                self._inodes.discard(_inode(made.fileno()))

        self._replacement = record
        socket.socket.__init__ = record  # type: ignore[assignment, method-assign]

    def shut(self, side: int = socket.SHUT_RD) -> int:
        """Shut one side of the connections, so that reads from them fail; return how many were shut.

        With SHUT_RD the reads of this process fail. With SHUT_WR those of the peers do: this is for a thread that is
        out of its collective, and writes no more.

        Connections that were closed meanwhile are left out, also if their descriptors have another use now. Within the
        block of `gathering`, this shuts the connections so far: call it again until the block is left.
        """
        number = 0
        before = self._before
        sockets = _sockets()
        begun = filter(None, (reference() for reference in list(self._begun)))
        left_alone = {_inode(each.fileno()) for each in begun} | self._made | self._shut.keys()
        for inode, fd in sockets.items():
            came = inode in self._inodes or (before is not None and inode not in before)
            if came and inode not in left_alone and (own := _shut(fd, inode, side)) is not None:
                self._shut[inode] = own
                number += 1
        return number

    def close(self) -> None:
        """Close the connections, when all workers are out of the round, and record no more sockets."""
        while self._shut:
            self._shut.popitem()[1].close()
        original, self._original = self._original, None
        # Somebody else may have replaced it since.
        if original is not None and socket.socket.__init__ is self._replacement:
            socket.socket.__init__ = original  # type: ignore[method-assign]


def _shut(fd: int, inode: str, side: int) -> socket.socket | None:
    """Shut one side of a socket; return another descriptor of it, which stays open.

    None if the descriptor belongs to another file now, or to no TCP connection.
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
    """Return the inode of a descriptor as /proc shows it; empty if there is no such descriptor."""
    try:
        return str((_FOLDER / str(fd)).readlink())
    except OSError:
        return ""
