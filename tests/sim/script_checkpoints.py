"""The checkpoints that the scripts of simulated nodes write by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from coordinatord.protocol.kept_state import Holding
from nodeclient.core.events import KeptChanged

if TYPE_CHECKING:  # the memory of a node has them
    from tests.sim.host import Host
    from tests.sim.kept_memory import KeptMemory
    from tests.sim.workers import Round, Training
    from tests.sim.world import World

LOOK_S = 0.5
"""How long after a step the workers of a node have written its checkpoint, at most: each node in its own time."""


class ScriptCheckpoints:
    """What the workers of one node have written."""

    def __init__(self, host: Host, world: World, memory: KeptMemory) -> None:
        self._host, self._memory = host, memory
        self._every = world.scenario.writes_every
        self._round: Round | None = None
        """The round of the last training that began here; its workers may have ended since."""
        self._newest: int | None = None
        """The step of the newest checkpoint in that round; None before the first."""

    def begin(self, training: Training) -> None:
        """Write checkpoints of this training from now on, if the script writes any."""
        self._round, self._newest = training.key, None
        if self._every is not None:
            self._memory.later(LOOK_S, self._look, training, self._every)

    def noted(self, holding: Holding) -> Holding:
        """Return what the node holds with its checkpoints."""
        newest = self._newest if self._round == self._memory.key else None
        return replace(holding, writes_checkpoints=self._every is not None, checkpointed=newest)

    def _look(self, training: Training, every: int) -> None:
        if self._host.workers.training is not training or training.broken or not self._host.workers.alive:
            return
        stepped = training.stepped()
        step = -1 if stepped is None else stepped[0] - stepped[0] % every
        if step >= training.first_step and step != self._newest:
            self._newest = step
            self._host.submit(KeptChanged())
        self._memory.later(LOOK_S, self._look, training, every)
