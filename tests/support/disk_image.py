"""Disks whose content is a file: what such a file holds at a moment is what a host that lost power leaves behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SIZE_BYTES = 64 * 1024 * 1024


def make_image(image: Path) -> None:
    """Make a disk with an empty file system. The test is skipped where that cannot be done."""
    if os.geteuid() or shutil.which("mkfs.ext4") is None:
        pytest.skip("to make and to mount a disk takes root and mkfs.ext4")
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)  # noqa: S607 - a test's own command


@contextmanager
def mounted_image(image: Path, place: Path) -> Iterator[None]:
    """Mount a disk. The test is skipped where there are no loop devices."""
    place.mkdir()
    made = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, check=False)  # noqa: S607 - as above
    if made.returncode:
        pytest.skip("no loop device can be mounted")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)  # noqa: S607 - as above
