"""Workers that come late to collectives: the arrivals that looks show, and the invariants of drains for lateness."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinatord.core.rounds.events import Compared
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.watching.arrivals import EVERY_S, can_be_compared
from tests.support.looks import arrived

if TYPE_CHECKING:  # the world imports its parts
    from tests.sim.world import World

IN_A_ROW = 3
"""The number of looks in a row that must name the same node before it may be drained."""

LATE = 0.3
"""The part of a step by which a late worker is late: without it a step takes 1.43 times as long."""

BY_CHANCE = 0.25
"""The share of looks in which another worker is late, or none."""


class Laggards:
    """Reports when workers came to collectives, as `server/reads/arrival_reads.py` does.

    A worker of one node is late, and when that node is drained, a worker of another one.
    """

    def __init__(self, world: World, pauses: Sequence[float] = (EVERY_S, EVERY_S / 10)) -> None:
        """Begin; each look follows one of these pauses."""
        self._world, self._pauses = world, pauses
        self._chance = random.Random(world.seed)  # noqa: S311 - repeatable on purpose
        self._slow = self._chance.choice([*(host.node for host in world.hosts.values()), ""])
        self._named: tuple[object, str] = ("", "")
        """The round and life of the coordinator at the last look, and the node that it named."""
        self._in_a_row = 0
        self.drained = 0
        """Nodes that were drained for their lateness."""
        self.is_over = False
        world.queue.plan(EVERY_S, self._look)

    def _look(self) -> None:
        if self.is_over:
            return
        world = self._world
        world.queue.plan(self._chance.choice(self._pauses), self._look)
        run = world.daemon.machine.jobs.get("job") if world.daemon.idle else None
        if run is None or not can_be_compared(run) or run.progress.pace.usual_s is None:
            return
        nodes = [*run.durable.order]
        late = self._slow
        if self._chance.random() < BY_CHANCE:
            late = self._chance.choice([*nodes, ""])
        now, step_s = world.daemon.clock.read(), run.progress.pace.usual_s
        arrivals = tuple(
            arrived(own.node, own.first_rank, now, step_s, LATE * step_s * (own.node == late))
            for own in run.durable.order.values()
        )
        self._note((run.id, run.durable.round, world.daemon.life), late if late in nodes and len(nodes) > 1 else "")
        known = world.daemon.machine.cluster.durable.drained
        before = set(known)
        world.daemon.take(Compared(run.id, run.durable.round, arrivals), world.daemon.life)
        for node in set(known) - before:
            self._judge(run, node)

    def _note(self, where: object, node: str) -> None:
        """Note the node that a look names, in which round and life of the coordinator."""
        same = (where, node) == self._named
        self._in_a_row = (self._in_a_row if same else 0) + (node != "")
        self._named = where, node

    def _judge(self, run: Run, node: str) -> None:
        check, named = self._world.check, self._named[1]
        check(run.spec.drain_laggards > 0, "%s is drained for its lateness, and its job does not want that", node)
        check(node == named, "%s is drained for its lateness, and %s is late", node, named or "none")
        check(self._in_a_row >= IN_A_ROW, "%s is drained after %d looks in a row", node, self._in_a_row)
        others = [member for member in run.members.values() if member.node != node and not member.leaves]
        leaving = [member.node for member in run.members.values() if member.node != node and member.leaves]
        check(not leaving, "%s is drained for its lateness while %s leaves", node, leaving)
        left = sum(member.durable.in_round or member.state is MemberState.READY for member in others)
        check(left >= run.spec.nodes_min, "%s is drained, and %d nodes are left", node, left)
        self.drained += 1
        self._slow = self._chance.choice([member.node for member in others])
