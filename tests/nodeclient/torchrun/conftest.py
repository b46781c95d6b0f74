"""Fixtures of the tests of torchrun's backend: handlers within this process, and real torchrun processes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import Coordinator
from tests.support.fixtures import cluster, coordinator, own_coordinator, place
from tests.support.torchruns import Torchruns

if TYPE_CHECKING:
    from tests.support.handlers import Job

__all__ = ["cluster", "coordinator", "own_coordinator", "place"]


@pytest.fixture
def job(coordinator: Coordinator) -> Iterator[Job]:
    """Yield a job of its own for handlers in this process."""
    from tests.support.handlers import Job  # noqa: PLC0415 - imports torch, which quick tests do without

    handlers = Job(coordinator.endpoint, f"job-{secrets.token_hex(4)}")
    yield handlers
    handlers.close()


@pytest.fixture
def torchruns(coordinator: Coordinator) -> Iterator[Torchruns]:
    """Yield a function that starts torchrun processes; after the test none of them lives."""
    programs = Torchruns(coordinator.endpoint)
    yield programs
    programs.close()
