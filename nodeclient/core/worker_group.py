"""The agent's view of its local worker group in one round: who lives, and to what their end leads."""

from __future__ import annotations

from coordinatord.protocol.messages import Assignment, Phase
from nodeclient.core.ending import Ladder
from nodeclient.core.events import Keeping
from nodeclient.core.exits import Exits


class WorkerGroup:
    """The worker group of one round."""

    def __init__(self, run: str = "", number: int = 0, assignment: Assignment | None = None, origin: str = "") -> None:
        """Begin without processes in a round of a run; `origin` is why the round was formed."""
        self.run, self.round = run, number
        self.assignment = assignment
        self.origin = origin
        self.begun = False
        """Whether its workers are being started, or were."""
        self.alive: set[int] = set()
        """The local ranks of workers that live and are in the round, or are about to."""
        self.pids: tuple[int, ...] = ()
        """The processes of its workers, by local rank, once all are started."""
        self.keeping: Keeping | None = None
        """How its workers keep state; None while none of them does."""
        self.result = Phase.STOPPED
        """The phase that its end leads to."""
        self.ending = Ladder()
        self.exits = Exits(0 if assignment is None else assignment.first_rank, self.ending)

    @property
    def living(self) -> tuple[int, ...]:
        """The processes of its workers by local rank, and 0 for one that is gone; empty if none is left."""
        pids = self.pids if self.alive else ()
        return tuple(pid if local_rank in self.alive else 0 for local_rank, pid in enumerate(pids))
