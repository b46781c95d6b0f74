"""Sets limits of this process: many open files, and no core file, which would contain secrets."""

from __future__ import annotations

import resource
from contextlib import suppress

INHERITED_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and the hard limit of open files at the start, for programs that this process starts for its user."""

INHERITED_CORE = resource.getrlimit(resource.RLIMIT_CORE)
"""The same two limits of a core file, in bytes."""

NO_CORE_FILE = 1
"""The limit of a core file in bytes that prevents any."""


def leave_no_core_file() -> None:
    """Prevent core files of this process, because they would contain tokens and keys.

    If core_pattern names a program, Linux passes a core file to it whatever the limit is, unless that is 1
    (fs/coredump.c, "RLIMIT_CORE is set to 1, aborting core"). Only root can raise a hard limit of 0 to 1. Without root,
    such a program may then get a core file.
    """
    _, hard = INHERITED_CORE
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (NO_CORE_FILE, hard or NO_CORE_FILE))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def allow_many_files() -> None:
    """Raise the soft limit on open files, commonly 1,024, to the hard one; each worker uses about five."""
    _, hard = INHERITED_FILES
    with suppress(OSError, ValueError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def load_thread_end() -> None:
    """Load the library that glibc needs to end a thread, while a descriptor is free to open it.

    At its end Python ends daemon threads, and only then would glibc open the library. Without a free descriptor it
    aborts the process, and the exit code is lost.
    """
    import ctypes  # noqa: PLC0415 - most commands end without threads

    with suppress(OSError):  # other C libraries have nothing to load
        ctypes.CDLL("libgcc_s.so.1")
