"""Chooses the next coordinator to try, and the pause before it, as `nodeclient/shell/coordinator_connection.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinatord.protocol.ip_addresses import Endpoint
from nodeclient.access.contact_points import ContactPoints
from nodeclient.shell.coordinator_connection import CONNECT_WITHIN_S, PAUSE_FIRST_S, REACH_WITHIN_S, pause_after

if TYPE_CHECKING:  # hosts have one, and the world has hosts
    from tests.sim.coordinator import SimulatedCoordinator
    from tests.sim.world import World


class CoordinatorSearch:
    """The contact points of one nodeclient."""

    def __init__(self, world: World) -> None:
        """Begin with the first coordinator."""
        self._world = world
        self._contacts = ContactPoints([coordinator.endpoint for coordinator in world.coordinators])
        self._pause_s = PAUSE_FIRST_S
        self._leader: Endpoint | None = None
        self._silent = False

    @property
    def target(self) -> SimulatedCoordinator:
        """The coordinator to try now."""
        wanted = self._contacts.current.coordinator
        return next(coordinator for coordinator in self._world.coordinators if coordinator.endpoint == wanted)

    @property
    def alone(self) -> bool:
        """Whether there is no other coordinator."""
        return self._contacts.is_only_one

    @property
    def answer_within_s(self) -> float:
        """How long to wait for an answer of the present one, in seconds."""
        return REACH_WITHIN_S if self._contacts.is_suspect else CONNECT_WITHIN_S

    def failed(self, leader: Endpoint | None, *, silent: bool) -> None:
        """Note that the present one has not answered in time (`silent`), or stands by and may have named the leader."""
        self._leader, self._silent = leader, silent

    def give_up(self) -> None:
        """Note that the node gives up its connection to the present one."""
        self._silent = True

    def over(self, now: float, *, welcome: bool) -> bool:
        """Note the end of an attempt, which may have been `welcome`; return whether the next one follows at once.

        `now` is by the clock of the host.
        """
        leader, self._leader = self._leader, None
        silent, self._silent = self._silent, False
        self._pause_s = pause_after(self._pause_s, let_in=welcome, turned_away=False)
        return self._contacts.record_attempt(now, served=welcome, silent=silent, leader=leader)

    def draw_pause(self) -> float:
        """Draw the pause before the next attempt, in seconds."""
        return self._pause_s * self._world.chance.uniform(0.5, 1.0)
