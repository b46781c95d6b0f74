"""A leader that is cut off from all of its nodes lets a standby lead, which they may reach.

This costs nothing, since no node reaches the leader then. It does not go on without end: the next leader does the same
only after nodes have come to it, and these do reach a coordinator.
"""

from __future__ import annotations

import asyncio

from coordinatord.core.state.cluster import is_cut_off
from coordinatord.server.driver import Driver
from coordinatord.store.etcd.gateway import ALL_WITHIN_S, SILENT_S_MAX
from coordinatord.store.etcd.roster import Roster
from coordinatord.store.interface import LeadershipLostError

LOOK_AGAIN_S = 0.5
"""How often it is checked whether a node is heard: nodes try the other coordinators after 5 s without this one."""

LET_LEAD_S = SILENT_S_MAX + 2 * ALL_WITHIN_S
"""How long such a leader lets others try to lead before it tries again. A standby that etcd answers needs no longer:
its watch may be silent, and then it reads the leader key and makes its own. If the former leader were earlier, it would
lead on, since no node comes to it."""

CUT_OFF = "no node is heard any more, and this host's network may have failed"
"""The reason why such a leader leads no more."""


class CutOffError(LeadershipLostError):
    """This coordinator hears none of its nodes, and another one may hear them."""


async def lead_until_cut_off(driver: Driver, roster: Roster) -> None:
    """Raise `CutOffError` once no node is heard any more, if etcd answers and somebody stands by."""
    while not (is_cut_off(driver.machine.cluster) and roster.standbys and not roster.problem):  # noqa: ASYNC110 - silence is no event
        await asyncio.sleep(LOOK_AGAIN_S)
    raise CutOffError(f"{CUT_OFF}: this coordinator stands by, so that one leads that nodes can reach")
