"""Fixtures of the tests of warm workers."""

from pathlib import Path

import pytest

from tests.nodeclient.forkserver.support import Stage
from tests.support.cluster import Coordinator
from tests.support.fixtures import cluster, coordinator, own_coordinator

__all__ = ["cluster", "coordinator", "own_coordinator", "stage"]


@pytest.fixture
def stage(tmp_path: Path, coordinator: Coordinator) -> Stage:
    return Stage(tmp_path, coordinator)
