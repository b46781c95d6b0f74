"""Fixtures of the tests of the programs."""

from __future__ import annotations

from tests.support.fixtures import cluster, coordinator, own_coordinator

__all__ = ["cluster", "coordinator", "own_coordinator"]
