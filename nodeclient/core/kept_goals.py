"""What the coordinator wants of the kept state: which steps to protect, and what the workers resume from."""

from __future__ import annotations

from coordinatord.protocol.kept_state import KeptStep, Resume
from coordinatord.protocol.messages import Desired, Goal
from nodeclient.core.effects import Protect, Restore


class KeptGoals:
    """Notes what was asked for, so that each thing is asked for once."""

    def __init__(self) -> None:
        self._round: tuple[str, int] | None = None
        """The run and round whose workers are known to resume from something, or from nothing."""
        self._resume: Resume | None = None
        self._protected: tuple[str, tuple[KeptStep, ...]] | None = None

    def pursue(self, desired: Desired | None, run: str, number: int) -> list[Restore | Protect]:
        """Return what is to be done by a node that is in this round, if anything is new.

        The answer to what a round resumes from is in the goal that begins it. It may be made complete later. When the
        workers do steps it is taken away, which changes nothing.
        """
        if desired is None or desired.run != run:
            return []
        new: list[Restore | Protect] = []
        if desired.protected is not None and self._protected != (run, desired.protected):
            self._protected = run, desired.protected
            new.append(Protect(run, desired.protected))
        if desired.goal is Goal.RUN and desired.round == number:
            begins = self._round != (run, number)
            if begins or desired.resume not in {None, self._resume}:
                self._round, self._resume = (run, number), desired.resume
                new.append(Restore(run, number, desired.resume))
        return new
