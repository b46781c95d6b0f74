"""Disks for tests: small and read-only ones that one program sees, and whole file systems in memory or in a file.

The content of a file is what a host that lost power leaves behind.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.namespaces import apart


def small_disk(place: Path, size_kib: int) -> tuple[str, ...]:
    """Return the prefix of a command that is to see an empty disk of this size in `place`."""
    return _on(place, f"mount -t tmpfs -o size={size_kib}k,mode=700 none {place}")


def read_only_disk(place: Path) -> tuple[str, ...]:
    """Return the prefix of a command that is to see `place` as it is, and read-only."""
    return _on(place, f"mount --bind {place} {place} && mount -o remount,ro,bind {place}")


def fill(ballast: Path) -> None:
    """Take all the room that is left on the disk of a file, to the last byte."""
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 16, 512, 1):
            with suppress(OSError):  # it is full
                while True:
                    file.write(bytes(size))


def _on(place: Path, mount: str) -> tuple[str, ...]:
    """Return the prefix of a command that sees a mount. Skips the test if nothing can be mounted."""
    place.mkdir(exist_ok=True)
    return apart("--mount", setup=mount)


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
