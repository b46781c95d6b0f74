"""The limit on open files, which the system sets to this process, and what must work when it is reached."""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress

INHERITED_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and the hard limit that this process began with, for programs that it starts for its user."""


def allow_many_files() -> None:
    """Raise the soft limit on open files, commonly 1,024, to the hard one.

    A connection takes one, a worker some five.
    """
    _, hard = INHERITED_FILES
    with suppress(OSError, ValueError):  # a sandbox may forbid it; the limit then stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def load_thread_end() -> None:
    """Load the library with which glibc ends a thread, as long as there is a descriptor to open it with.

    Python ends daemon threads by `pthread_exit` when the program is over. glibc opens the library only then, and aborts
    the process if it cannot: a program that ran out of descriptors would lose its exit code.
    """
    with suppress(OSError):  # other C libraries have nothing to load
        ctypes.CDLL("libgcc_s.so.1")
