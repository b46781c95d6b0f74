"""The coordinator's goals for kept state: steps to protect, resume from, write and copy; and whether ranks differ."""

from __future__ import annotations

from coordinatord.protocol.kept_state import KeptCopy, KeptStep, PersistOrder, Resume
from coordinatord.protocol.messages import Desired, Goal
from nodeclient.core.effects import CopyKept, Persist, Protect, Restore, TellAlike


class KeptGoals:
    """Turns these goals into effects: one for each goal, however often the coordinator repeats it."""

    def __init__(self) -> None:
        self._round: tuple[str, int] | None = None
        """The run and round of the last `Restore`."""
        self._resume: Resume | None = None
        self._protected: tuple[str, tuple[KeptStep, ...]] | None = None
        self._persist: tuple[str, PersistOrder | None] = ("", None)
        self._copies: tuple[str, tuple[KeptCopy, ...]] = "", ()
        self._compared: tuple[str, int] = "", 0
        """The run and round of the last `TellAlike`."""

    def pursue(
        self, desired: Desired | None, run: str, number: int
    ) -> list[Restore | Protect | Persist | CopyKept | TellAlike]:
        """Return the effects of the goals that are new in the desired state, for a node in this round of this run.

        The goal that begins a round names the parts to resume from, and a later one may complete them. Once the node
        has all parts, or the workers do steps, the goal names none, and nothing has to be done.
        """
        if desired is None or desired.run != run:
            return []
        new: list[Restore | Protect | Persist | CopyKept | TellAlike] = []
        if desired.protected is not None and self._protected != (run, desired.protected):
            self._protected = run, desired.protected
            new.append(Protect(run, desired.protected))
        if desired.persist != (self._persist[1] if self._persist[0] == run else None):
            self._persist = run, desired.persist
            new.append(Persist(run, desired.persist))
        if desired.goal is Goal.RUN and desired.round == number:
            begins = self._round != (run, number)
            if begins or desired.resume not in {None, self._resume}:
                self._round, self._resume = (run, number), desired.resume
                new.append(Restore(run, number, desired.resume))
        if desired.alike is not None and desired.round == number and self._compared != (run, number):
            self._compared = run, number
            new.append(TellAlike(desired.alike))
        if desired.copies != self._copies[1] or (desired.copies and run != self._copies[0]):
            self._copies = run, desired.copies
            new.append(CopyKept(run, desired.copies))
        return new
