"""The limits that the system sets to this process: how many files it may have open."""

from __future__ import annotations

import resource
from contextlib import suppress

INHERITED_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and the hard limit that this process began with, for programs that it starts in the name of its user."""


def allow_many_files() -> None:
    """Raise the soft limit on open files, commonly 1,024, to the hard one; a connection is one, a worker some five."""
    _, hard = INHERITED_FILES
    with suppress(OSError, ValueError):  # a sandbox may forbid it, and then there are as many as there are
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
