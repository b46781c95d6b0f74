"""A disk that is full soon, and a node that writes to one that is not."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.nodeclient.keeping.stage import KeepingNode, keeping_nodes
from tests.support.disks import mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of one megabyte."""
    with mounted(tmp_path / "disk", 1_000_000) as disk:
        yield disk


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[KeepingNode]:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path / "disk") as [node]:
        yield node
