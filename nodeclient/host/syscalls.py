"""Makes system calls that a Python may lack because it is built for an older C library.

The Pythons of conda and uv are built for glibc 2.17 of 2012, and lack calls of later kernels. This module imports next
to nothing, because the guard imports it too, and has to start fast.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode

PIDFD_SEND_SIGNAL = 424
PIDFD_OPEN = 434
"""The numbers of system calls, which are the same on all processors from Linux 5.1 on."""

_CLOEXEC_AND_SEALABLE = 1 | 2
"""MFD_CLOEXEC and MFD_ALLOW_SEALING in linux/memfd.h."""

_F_ADD_SEALS = 1033
_SEAL_SIZE = 2 | 4 | 1
"""F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL in linux/fcntl.h, which fix the size of a file."""


class MissingCallError(OperationalError):
    """The kernel has no pidfds for this process."""

    exit_code = ExitCode.USAGE  # as for a flag that this host cannot obey: another attempt would not help


def check_pidfds() -> None:
    """Check that this host has descriptors of processes (pidfds). Raises `MissingCallError`."""
    try:
        pidfd = pidfd_open(os.getpid())
        try:
            pidfd_send_signal(pidfd, 0)
        finally:
            os.close(pidfd)
    except OSError as error:
        raise MissingCallError(
            f"workers cannot be watched here: pidfd_open or pidfd_send_signal is refused ({error.strerror}). They need "
            f"Linux 5.3 or later (this is {os.uname().release}), and in a container a seccomp profile that knows them: "
            "that of a newer Docker or Podman, or of your own"
        ) from error


def pidfd_open(pid: int) -> int:
    """Return a descriptor of a process, as `os.pidfd_open` does. Raises `OSError`."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _call("syscall", PIDFD_OPEN, pid, 0)


def pidfd_send_signal(pidfd: int, signum: int) -> None:
    """Send a signal to the process of a descriptor, as `signal.pidfd_send_signal` does. Raises `OSError`."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, signum)
    else:
        _call("syscall", PIDFD_SEND_SIGNAL, pidfd, signum, None, 0)


def memory_file(name: str) -> int:
    """Return an empty file in memory, as `os.memfd_create` does, for `seal_size`. Raises `OSError`."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, _CLOEXEC_AND_SEALABLE)
    # By name: the number of this older call depends on the processor.
    return _call("memfd_create", name.encode(), _CLOEXEC_AND_SEALABLE)


def seal_size(file: int) -> None:
    """Fix the size of a file in memory for ever, so that its mappings stay valid. Raises `OSError`."""
    fcntl.fcntl(file, _F_ADD_SEALS, _SEAL_SIZE)


def _call(function: str, *arguments: object) -> int:
    """Call a function of the C library in use. Raises `OSError`."""
    import ctypes  # noqa: PLC0415 - slow, and not needed if Python has the call

    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, function, None)
    if call is None:  # glibc has memfd_create from 2.27 of 2018 on
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    result: int = call(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
