"""The bearer of another token, who claims the identities of live nodes: see `invariants/identities`.

Its claims are drawn from a generator of its own, so that the histories are the same without it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from coordinatord.core.rounds.events import Connected
from coordinatord.protocol.messages import PROTOCOL_VERSION, Join, Observed, Phase
from tests.sim.coordinator import OWN_ADDRESS
from tests.support.builders import a_failure

if TYPE_CHECKING:  # the world has one
    from tests.sim.world import World

TOKEN = "stranger"  # noqa: S105 - a name, and no secret
"""The name of its token."""

WITHIN_S = 80.0
"""The time in which it makes its claims."""

CLAIMS = 6

YOUNGEST = 2**62
"""An incarnation that is later than any."""


class IdentityClaims:
    """One bearer of a token that is not the nodes'."""

    def __init__(self, world: World) -> None:
        """Plan some claims, each at a random moment."""
        self._world = world
        self._number = 10**9
        """The last session of a claim."""
        self._chance = random.Random(f"impostor {world.seed}")  # noqa: S311 - repeatable on purpose
        for _ in range(CLAIMS):
            world.queue.after(self._chance.uniform(0.0, WITHIN_S), self._claim)

    def _claim(self) -> None:
        chance, daemon = self._chance, self._world.daemon
        host = chance.choice(list(self._world.hosts.values()))
        others = [host.incarnation, host.incarnation + 1, max(0, host.incarnation - 1), YOUNGEST]
        incarnation, observed = chance.choice(others), self._make_up()
        if daemon.up and not daemon.paused and self._world.invariants.identities.is_taken(host.node, daemon.machine):
            offer = self._world.scenario.offer_of(host.name)
            self._send(Join(PROTOCOL_VERSION, "job", host.node, incarnation, self._world.spec, offer, observed))

    def _send(self, join: Join) -> None:
        """Let the coordinator handle a `Join`, and check the result; the answer is dropped."""
        self._number += 1
        daemon, identities = self._world.daemon, self._world.invariants.identities
        claim = Connected(self._number, join, OWN_ADDRESS, OWN_ADDRESS, TOKEN)
        before = identities.known(daemon.machine)
        batch = daemon.machine.handle(claim, daemon.clock.read())
        identities.judge_claim(claim, before, batch)
        daemon.carry_out(batch)

    def _make_up(self) -> Observed:
        """Return a report that the node might send, or one that would do harm if it counted."""
        run = self._world.daemon.machine.jobs.get("job")
        phase = self._chance.choice([Phase.IDLE, Phase.RUNNING, Phase.STOPPED, Phase.FAILED, Phase.SUCCEEDED])
        return Observed(
            run="" if run is None else run.id,
            round=(0 if run is None else run.durable.round) + self._chance.choice([0, 0, 1]),
            phase=phase,
            port=self._chance.randint(30_000, 60_000),
            leaving=self._chance.random() < 0.3,
            failure=a_failure() if phase is Phase.FAILED else None,
            heard_s=0.0,
            beat=False,
        )
