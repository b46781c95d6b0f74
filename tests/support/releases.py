"""Other releases of these programs: the real code of an older one, and this one with another version of the protocol.

Both are prefixes of a command, as `Coordinator` and `Cluster.join` take them.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COMMITS = {4: "468a308"}
"""The last commits of versions of the protocol."""

PACKAGES = ("coordinatord", "nodeclient", "workerlib")

OTHER_VERSION = """
import runpy, sys
from coordinatord.protocol import messages
messages.PROTOCOL_VERSION, sys.argv = int(sys.argv[1]), sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program with another version of the protocol."""


def of_version(version: int) -> tuple[str, ...]:
    """Return the prefix that runs one of our programs as if a release spoke this version, and the two before it."""
    return sys.executable, "-c", OTHER_VERSION, str(version)


def released(version: int, folder: Path) -> tuple[str, ...] | None:
    """Put the last release that spoke a version into a folder, and return the prefix that runs its programs.

    None if the repository, or this part of its history, is not at hand, as in an installed package or a shallow clone.
    """
    command = ("git", "-C", str(ROOT), "archive", COMMITS[version], *PACKAGES)
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return "env", f"PYTHONPATH={folder}", sys.executable
