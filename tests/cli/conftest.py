"""Fixtures of the tests of the programs."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.fixtures import cluster, coordinator, own_coordinator
from tests.support.places import Place

__all__ = ["cluster", "coordinator", "own_coordinator"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Yield a user's home where all is as it is by default; what was started there ends with the test."""
    with ExitStack() as stack:
        yield Place(tmp_path, stack)
