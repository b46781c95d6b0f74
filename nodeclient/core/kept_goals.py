"""Turns the coordinator's goals for kept state into effects, such as which steps to protect, write and copy.

Kept state is training state that workers leave in memory of their node. Each desired state of the coordinator repeats
all of its goals, because a message may be lost. So this module remembers what it has begun, and begins only what is
new.
"""

from __future__ import annotations

from coordinatord.protocol.kept_state import KeptCopy, KeptStep, PersistOrder, Resume
from coordinatord.protocol.messages import Desired, Goal
from nodeclient.core.effects import CopyKept, Persist, Protect, Restore, TellAlike


class KeptGoals:
    """The goals for kept state that were last turned into effects, each with its run: in another run all are new."""

    def __init__(self) -> None:
        self._round: tuple[str, int] | None = None
        """The run and round of the last `Restore`."""
        self._resume: Resume | None = None
        self._protected: tuple[str, tuple[KeptStep, ...]] | None = None
        self._persist: tuple[str, PersistOrder | None] = ("", None)
        self._copies: tuple[str, tuple[KeptCopy, ...]] = "", ()
        self._compared: tuple[str, int] = "", 0
        """The run and round of the last `TellAlike`: workers are told once a round whether their states were alike."""

    def pursue(
        self, desired: Desired | None, run: str, number: int
    ) -> list[Restore | Protect | Persist | CopyKept | TellAlike]:
        """Return the effects of the goals that are new in the desired state, for a node in round `number` of a run.

        The first goal to run a round gives a `Restore`, even if the round resumes from nothing. A later goal gives
        another one if it names more parts to resume from. Once the node has all parts, or the workers do steps, a goal
        names none, and gives no effect.
        """
        if desired is None or desired.run != run:
            return []
        new: list[Restore | Protect | Persist | CopyKept | TellAlike] = []
        if desired.protected is not None and self._protected != (run, desired.protected):
            self._protected = run, desired.protected
            new.append(Protect(run, desired.protected))
        ordered = self._persist[1] if self._persist[0] == run else None
        if desired.persist != ordered:
            self._persist = run, desired.persist
            new.append(Persist(run, desired.persist))  # without an order it gives up the write
        if desired.goal is Goal.RUN and desired.round == number:
            begins = self._round != (run, number)
            if begins or desired.resume not in {None, self._resume}:
                self._round, self._resume = (run, number), desired.resume
                new.append(Restore(run, number, desired.resume))
        if desired.alike is not None and desired.round == number and self._compared != (run, number):
            self._compared = run, number
            new.append(TellAlike(desired.alike))
        # Equal copies in another run are new ones. An empty list is the same in every run.
        if desired.copies != self._copies[1] or (desired.copies and run != self._copies[0]):
            self._copies = run, desired.copies
            new.append(CopyKept(run, desired.copies))
        return new
