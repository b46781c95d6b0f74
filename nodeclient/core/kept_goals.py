"""The coordinator's goals for kept state: what to protect, resume from, write and copy."""

from __future__ import annotations

from coordinatord.protocol.kept_state import KeptCopy, KeptStep, PersistOrder, Resume
from coordinatord.protocol.messages import Desired, Goal
from nodeclient.core.effects import CopyKept, Persist, Protect, Restore, TellAlike


class KeptGoals:
    """The goals that led to effects already, so that each leads to one effect."""

    def __init__(self) -> None:
        self._round: tuple[str, int] | None = None
        """The run and round of the last `Restore`."""
        self._resume: Resume | None = None
        self._protected: tuple[str, tuple[KeptStep, ...]] | None = None
        self._persist: tuple[str, PersistOrder | None] = ("", None)
        self._copies: tuple[str, tuple[KeptCopy, ...]] = "", ()
        self._told: tuple[str, int] = "", 0
        """The run and round whose workers were told whether they are alike."""

    def pursue(
        self, desired: Desired | None, run: str, number: int
    ) -> list[Restore | Protect | Persist | CopyKept | TellAlike]:
        """Return the effects of what is new in the desired state, for a node that is in this round.

        The goal that begins a round names what the round resumes from. A later one may complete that. It is absent once
        the node has all of it, or the workers do steps, which changes nothing.
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
        if desired.alike is not None and self._told != (run, number) == (run, desired.round):
            self._told = run, number
            new.append(TellAlike(desired.alike))
        if desired.copies != self._copies[1] or (desired.copies and run != self._copies[0]):
            self._copies = run, desired.copies
            new.append(CopyKept(run, desired.copies))
        return new
