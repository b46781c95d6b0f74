"""What is known of the kept state of one run."""

from __future__ import annotations

from coordinatord.core.keeping.checkpoint_watch import CheckpointWatch
from coordinatord.core.keeping.halting import Halting
from coordinatord.core.keeping.kept_index import KeptIndex
from coordinatord.core.keeping.persisting import Persisting
from coordinatord.core.rounds.state.run import Run


class KeptState:
    """What is known of the kept state of one run; nothing of it is recorded."""

    def __init__(self, run: Run) -> None:
        """Begin with what the records of the run hold."""
        self.run = run
        self.changes = 0
        """How often something has changed that nodes are sent."""
        self.index = KeptIndex(run.durable)
        self.disk = Persisting()
        self.halting = Halting()
        self.checkpoints = CheckpointWatch()
        self.stays_until: dict[str, float] = {}
        """The time until which nodes that leave may stay to hand over what they keep; in the past if none needs it."""


def kept_of(run: Run) -> KeptState:
    """Return what is known of the kept state of a run; a coordinator without this wing keeps nothing."""
    return run.keeping if isinstance(run.keeping, KeptState) else KeptState(run)
