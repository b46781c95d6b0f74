"""Fixtures of the tests of the programs."""

from tests.support.fixtures import cluster, coordinator, own_coordinator, place

__all__ = ["cluster", "coordinator", "own_coordinator", "place"]
