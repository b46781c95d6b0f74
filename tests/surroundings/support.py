"""Jobs of one node in odd surroundings, at a coordinator in ordinary ones."""

import secrets
import subprocess
from collections.abc import Mapping, Sequence

from tests.support.cluster import Coordinator
from tests.support.programs import BIN, clean_environ, run

NOBODY = 23_456
"""A user id that has no name anywhere."""


def join(coordinator: Coordinator, *flags: str) -> tuple[str, ...]:
    """Return the beginning of the command line of a node of a job of its own; the workers' command follows."""
    own = ("--job-id", f"job-{secrets.token_hex(4)}", "--nnodes", "1", "--join-timeout", "20")
    return (str(BIN / "nodeclient"), "join", "--coord", coordinator.endpoint, *own, *flags, "--")


def sh(prefix: Sequence[str], *command: str) -> tuple[str, ...]:
    """Return a command line that a shell runs after `prefix`, such as `("ulimit -n 40",)`."""
    return ("bash", "-c", f'{"; ".join(prefix)}; exec "$@"', "bash", *command)


def went(*command: str, environ: Mapping[str, str] | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which is to be that with `code`, and without a traceback."""
    ended = run(*command, environ=None if environ is None else clean_environ(**environ))
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended
