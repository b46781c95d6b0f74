"""Histories of hangs where nodes send more than one heartbeat a second, so that heartbeats do not keep looks apart.

They are histories of their own, so that the seeds of others play what they have always played.
"""

from __future__ import annotations

from tests.sim.history import hanging_world
from tests.sim.world import World

HEARTBEAT_S = 0.4
"""The interval of heartbeats: shorter than the least time between two looks, and long enough for calm leases."""


def often_heard_world(seed: int, *, loud: bool = False, digested: bool = False) -> World:
    """Play the history of workers that hang on nodes with frequent heartbeats. Raises as `small_world` does."""
    return hanging_world(seed, heartbeat_s=HEARTBEAT_S, loud=loud, digested=digested)
