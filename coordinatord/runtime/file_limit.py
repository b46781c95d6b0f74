"""The limit on open files, which the system sets to this process."""

from __future__ import annotations

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
