"""Fixtures of the tests of the surroundings."""

from tests.support.fixtures import coordinator, own_coordinator

__all__ = ["coordinator", "own_coordinator"]
