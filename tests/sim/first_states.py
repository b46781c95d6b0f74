"""What workers of a simulated node report beside what it keeps: first states, and checkpoints of their script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from coordinatord.protocol.kept_state import Holding
from nodeclient.core.effects import KeptOrder, TellAlike
from nodeclient.core.events import KeptChanged
from tests.sim.kept_copies import Keeps

if TYPE_CHECKING:  # the memory of a node has one
    from tests.sim.host import Host
    from tests.sim.kept_memory import KeptMemory
    from tests.sim.workers import Round, Training
    from tests.sim.world import World


REPORTED_WITHIN_S = 0.3
"""How long after the first step a node reports it, at most."""


class FirstStates:
    """The first state of the workers of one node in each round, and what they are told of those of others."""

    def __init__(self, host: Host, world: World, memory: KeptMemory) -> None:
        self._host, self._world, self._memory = host, world, memory
        self._compares = world.scenario.states_differ > 0 and memory.keeps is Keeps.SHARED
        self._training: Training | None = None
        self._reports = False
        self._alike = True
        """Whether the state counts as that of all ranks."""

    def begin(self, training: Training) -> None:
        """Have the states of this training compared, if it begins from nothing."""
        world, resumed = self._world, self._memory.resumed
        begins_anew = self._compares and resumed is not None and resumed[0] is None
        self._training, self._reports, self._alike = training, False, not begins_anew
        if begins_anew:
            differs = world.chance.random() < world.scenario.states_differ
            training.first_states[self._host.node] = world.chance.randrange(1, 100) if differs else 0
            self._memory.later(REPORTED_WITHIN_S, self._look, training)

    def shards(self, world_size: int) -> int:
        """Return how many shards the state of so many ranks has: as many as ranks until it is that of all."""
        return 1 if self._memory.keeps is Keeps.SHARED and self._alike else world_size

    def noted(self, holding: Holding) -> Holding:
        """Return what the node holds with the first state of its workers."""
        training = self._training
        here = self._reports and training is not None and training.key == self._memory.key
        return (
            replace(holding, first_states=(training.first_states[self._host.node],)) if here and training else holding
        )

    def tell(self, effect: KeptOrder) -> None:
        """Have the workers told whether all ranks have the same state, and check that they do."""
        training = self._training
        if not isinstance(effect, TellAlike) or training is None or training.key != self._memory.key:
            return
        different, nodes = {*training.first_states.values()}, self._world.invariants.facts.formed[training.key].nodes
        right = len(different) == 1 and len(training.first_states) == len(nodes) if effect.alike else len(different) > 1
        self._world.check(right, "%s is told %s of %s", self._host.name, effect, training.first_states)
        self._alike = effect.alike

    def _look(self, training: Training) -> None:
        if self._training is not training or training.broken:
            return
        if training.stepped() is None:
            self._memory.later(REPORTED_WITHIN_S, self._look, training)
        else:
            self._reports = True
            self._host.submit(KeptChanged())


WRITTEN_WITHIN_S = 0.5
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
            self._memory.later(WRITTEN_WITHIN_S, self._look, training, self._every)

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
        self._memory.later(WRITTEN_WITHIN_S, self._look, training, every)
