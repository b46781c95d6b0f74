"""Skips quiet time: a healthy cluster does the same every second, for hours.

When nothing but heartbeats goes on, the world's `time` is moved to shortly before the next event from outside. `now` is
not moved, so no clock has seen the time between. To the machines the quiet time seems a second long, and in quiet time
each second leads back to the state that it began with. A world is quiet if all nodes are connected, and their agents
have no deadlines but heartbeat and lease. No row of the run's table may become due by itself, no patience may run out,
and nothing may be being written, cut off or stopped. Heartbeats and answers that are on their way arrive after the
quiet time.

The claim is that time alone changes nothing in a healthy cluster. Half of the small worlds skip nothing, which tests
the claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.table import first_due
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core.connection_state import Contact

if TYPE_CHECKING:  # the world has one of these
    from tests.sim.host import Host
    from tests.sim.world import World

WATCH_S = 0.25
"""The interval at which the world is checked for quiet."""

QUIET_S = 0.4
"""How long it must have been quiet before time is skipped."""

ENDS_BEFORE_S = 0.4
"""The longest time from the end of the skip to the next event: it may come at any moment between two heartbeats."""


class IdleSkip:
    """Skips a world's quiet time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.skipped = 0
        """How often quiet time was skipped."""
        world.queue.after(WATCH_S, self._watch)

    def _watch(self) -> None:
        world = self._world
        queue = world.queue
        if queue.now - world.touched_at >= QUIET_S:
            left = min(queue.next_planned, world.end) - queue.time - ENDS_BEFORE_S * world.chance.random()
            if left > 0 and self.is_quiet():
                queue.skip(left)
                self.skipped += 1
                world.touch()
        queue.after(WATCH_S, self._watch)

    def is_quiet(self) -> bool:
        """Whether nothing but heartbeats goes on."""
        world = self._world
        daemon = world.daemon
        if not daemon.idle or not all(self._is_calm(run) for run in daemon.machine.jobs.values()):
            return False
        nodes = 0
        for host in world.hosts.values():
            if host.agent is not None:
                nodes += 1
                if not self._is_well(host):
                    return False
        return nodes == daemon.machine.sessions

    def _is_calm(self, run: Run) -> bool:
        if run.durable.state.ended:
            return not run.members
        if (
            run.durable.state is not State.RUNNING
            or first_due(run) is not None
            or run.gathering.join_timeouts.first is not None
        ):
            return False
        if any(member.session.id is None for member in run.members.values()):
            return False  # its lease will be over
        return run.roll.count(MemberState.RUNNING, MemberState.READY, MemberState.SUCCEEDED) == len(run.members)

    def _is_well(self, host: Host) -> bool:
        agent, session = host.agent, host.session
        if agent is None or session is None or host.is_cut or host.paused or host.slow_s:
            return False
        desired, connection = agent._desired, agent._connection
        if desired is None or connection._contact is not Contact.LET_IN or session.broken:
            return False
        run = self._world.daemon.machine.jobs.get("job")
        known = None if run is None else run.members.get(host.node)
        if known is None or known.observed.phase is not agent.phase:
            return False  # its report is on its way
        if agent.phase is Phase.RUNNING:
            return desired.goal is Goal.RUN and (desired.run, desired.round) == (agent.run, agent.round)
        return (
            not agent.phase.has_workers and agent._leaving.decide_by is None and desired.goal in {Goal.WAIT, Goal.RUN}
        )
