"""The limits that the system sets to this process: on open files, and on core files, which would have secrets."""

from __future__ import annotations

import resource
from contextlib import suppress

INHERITED_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and the hard limit that this process began with, for programs that it starts for its user."""

INHERITED_CORE = resource.getrlimit(resource.RLIMIT_CORE)
"""The same two limits of a core file, in bytes."""

NO_CORE_FILE = 1
"""The limit of a core file, in bytes, by which there is none at all."""


def leave_no_core_file() -> None:
    """Have the system write no core file of this process, and hand none to a program.

    A core file has all of the memory in it, tokens and keys too. Anybody who gets it to look for a bug could read them.
    Linux does not look at the limit where core_pattern names a program, except for this one value: it is too small for
    a file, and means that nothing is handed on (fs/coredump.c, "RLIMIT_CORE is set to 1, aborting core").
    """
    _, hard = INHERITED_CORE
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (NO_CORE_FILE, hard or NO_CORE_FILE))
    except (OSError, ValueError):  # only root may raise a limit of 0
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def allow_many_files() -> None:
    """Raise the soft limit on open files, commonly 1,024, to the hard one.

    A connection takes one file, and a worker some five.
    """
    _, hard = INHERITED_FILES
    with suppress(OSError, ValueError):  # a sandbox may forbid it; the limit then stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def load_thread_end() -> None:
    """Load the library with which glibc ends a thread, as long as there is a descriptor to open it with.

    Python ends daemon threads by `pthread_exit` when the program is over. glibc opens the library only then, and aborts
    the process if it cannot: a program that ran out of descriptors would lose its exit code.
    """
    import ctypes  # noqa: PLC0415 - most commands end without threads

    with suppress(OSError):  # other C libraries have nothing to load
        ctypes.CDLL("libgcc_s.so.1")
