"""A file system of a few megabytes, in memory, which is really full when it is full; it takes root to mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(path: Path, size: int) -> Iterator[Path]:
    """Mount a file system of so many bytes. The test is skipped where that is not allowed."""
    path.mkdir()
    options = f"size={size},mode=0777"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", path], capture_output=True, check=False)  # noqa: S607 - a test's own command
    if os.geteuid() or made.returncode:
        pytest.skip("this user cannot mount a file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)  # noqa: S607 - as above
