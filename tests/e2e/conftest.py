"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from tests.support.fixtures import cluster, coordinator, own_coordinator

__all__ = ["cluster", "coordinator", "own_coordinator"]
