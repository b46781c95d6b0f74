"""A disk that is full soon."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.disks import mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of one megabyte."""
    with mounted(tmp_path / "disk", 1_000_000) as disk:
        yield disk
