"""The states of the workers of one round, which should be alike, and the digests that their nodes report of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinatord.protocol.kept_state import StateDigest

if TYPE_CHECKING:  # the training has them
    from tests.sim.host import Host
    from tests.sim.workers import Training
    from tests.sim.world import World


class Replicas:
    """The state of each worker of a training: that of all others, until a bit of it flips."""

    def __init__(self, training: Training, world: World) -> None:
        self._training, self._world = training, world
        self.flipped: dict[int, int] = {}
        """The first step after which the state of a rank is not that of the others, by rank."""
        self.flipped_at = 0.0
        """When the first of them flipped."""

    def flip(self, rank: int) -> bool:
        """Flip a bit in the state of a rank, which so has another state after each later step; return whether it did.

        It does not if none trains, or one has flipped already.
        """
        stepped = self._training.stepped()
        if stepped is None or self._training.broken or self.flipped:
            return False
        self._world.trace.note("round %d: a bit flips on rank %d", self._training.key[1], rank)
        self.flipped[rank], self.flipped_at = stepped[0] + 1, self._world.queue.now
        return True

    def digests(self, host: Host, step: int) -> tuple[StateDigest | None, ...]:
        """Return what a host reports after a step: the digests of the last step for which workers make them."""
        formed, scenario = self._world.invariants.facts.formed[self._training.key], self._world.scenario
        own = next(ranks for ranks in formed.nodes if ranks.node == host.node)
        every = scenario.digest_steps_of_others if own.first_rank else scenario.digest_steps
        step = step // every * every
        if step < self._training.first_step:
            return ()
        ranks = range(own.first_rank, own.first_rank + own.workers)
        return tuple(StateDigest(step, 0, int(self.flipped.get(rank, step + 1) <= step)) for rank in ranks)
