"""Opens, reads and writes descriptors without blocking for long: our outputs, workers' pipes and pseudo-terminals."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import stat
import struct
import termios
import tty

READ_BYTES = 64 * 1024
"""The most bytes of a read: the default capacity of a pipe (pipe(7))."""

_TTY_BYTES = 512
"""The size of a write to a terminal that may block. It blocks until all of it has room, so the write is small."""


def open_writer(fd: int) -> Writer:
    """Return a writer for one of this process's outputs. Raises `OSError`.

    The output must stay blocking for a shell or a worker that shares it. So pipes and terminals are opened again.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        return _SocketWriter(os.dup(fd))
    if not (stat.S_ISFIFO(mode) or os.isatty(fd)):
        return Writer(os.dup(fd))
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        own, may_block = os.open(f"/proc/self/fd/{fd}", flags), False
    except OSError:  # the terminal or pipe belongs to another user, as after su
        own, may_block = os.dup(fd), True
    return Writer(own, is_pipe=stat.S_ISFIFO(mode), may_block=may_block)


def same_place(one: int, other: int) -> bool:
    """Whether two descriptors lead to the same terminal, pipe or file."""
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino, first.st_rdev) == (second.st_dev, second.st_ino, second.st_rdev)


def pipe() -> tuple[int, int]:
    """Return the two ends of a pipe: a non-blocking one to read from, and one to write to. Raises `OSError`."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing


def pseudo_terminal(model: int) -> tuple[int, int]:
    """Return the two ends of a pseudo-terminal with the size of the terminal `model`; it passes bytes unchanged.

    No process gets it as a controlling terminal, because it is inherited and not opened. Raises `OSError`.
    """
    reading, writing = os.openpty()
    tty.setraw(writing)
    copy_size(model, reading)
    os.set_blocking(reading, False)
    return reading, writing


def copy_size(model: int, terminal: int) -> None:
    """Copy the size of another terminal, if it has one."""
    try:
        size = fcntl.ioctl(model, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    except OSError:  # the terminal has gone
        return


def read(fd: int, most: int = READ_BYTES) -> tuple[bytes, bool]:
    """Return the available bytes, up to `most`, and whether the stream has ended."""
    chunks: list[bytes] = []
    left = most
    while left > 0:
        try:
            chunk = os.read(fd, left)
        except BlockingIOError:
            return b"".join(chunks), False
        except OSError:  # EIO: the other side of a pseudo-terminal is closed
            chunk = b""
        if not chunk:
            return b"".join(chunks), True
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks), False


class Writer:
    """Writes to a file, a device, a pipe or a terminal without blocking; it owns the descriptor."""

    def __init__(self, fd: int, *, is_pipe: bool = False, may_block: bool = False) -> None:
        """Take `fd`. If writing to it `may_block`, each write is small, and is tried only when there is room."""
        self._fd = fd
        self._is_pipe = is_pipe
        self._may_block = may_block

    def write(self, data: bytes, start: int) -> int:
        """Write some of the bytes from `start` on; return how many. Raises `BlockingIOError` and other `OSError`."""
        end = self._end(data, start)
        if self._may_block and not _has_room(self._fd):
            raise BlockingIOError
        return os.write(self._fd, memoryview(data)[start:end])

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def _end(self, data: bytes, start: int) -> int:
        """Return the end of the bytes to write at once, from `start`.

        A second node may write to the same pipe, so each write to one is small enough to be atomic (PIPE_BUF).
        """
        if not self._is_pipe:
            return start + _TTY_BYTES if self._may_block else len(data)
        most = start + select.PIPE_BUF
        return len(data) if len(data) <= most else data.rfind(b"\n", start, most) + 1 or most


class _SocketWriter(Writer):
    """A socket, as under sshd or systemd."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        super().__init__(fd)

    def write(self, data: bytes, start: int) -> int:
        return self._socket.send(memoryview(data)[start:], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        self._socket.close()


def _has_room(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
