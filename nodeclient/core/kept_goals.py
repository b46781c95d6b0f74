"""What the coordinator wants of the kept state: what to protect, to resume from, and to keep in the end."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.protocol.kept_parts import KeptStep
from coordinatord.protocol.kept_state import Halt, KeptCopy, Resume
from coordinatord.protocol.messages import Desired, Goal
from coordinatord.protocol.persisted_state import PersistOrder
from nodeclient.core import notices
from nodeclient.core.effects import CopyKept, Effect, HaltWorkers, Level, Notice, Persist, Protect, Restore, SaveKept
from nodeclient.core.worker_group import WorkerGroup


class KeptGoals:
    """Remembers what was asked for, so that each thing is asked for once."""

    def __init__(self) -> None:
        self._round: tuple[str, int] | None = None
        """The run and round whose workers are known to resume from something, or from nothing."""
        self._resume: Resume | None = None
        self._protected: tuple[str, tuple[KeptStep, ...]] | None = None
        self._persist: tuple[str, PersistOrder | None] = ("", None)
        self._copies: tuple[str, tuple[KeptCopy, ...]] = "", ()

    def pursue(self, desired: Desired | None, run: str, number: int) -> list[Restore | Protect | Persist | CopyKept]:
        """Return what is to be done by a node that is in this round, if anything is new.

        The answer to what a round resumes from is in the goal that begins it. It may be made complete later. When the
        workers do steps it is taken away, which changes nothing.
        """
        if desired is None or desired.run != run:
            return []
        new: list[Restore | Protect | Persist | CopyKept] = []
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
        if desired.copies != self._copies[1] or (desired.copies and run != self._copies[0]):
            self._copies = run, desired.copies
            new.append(CopyKept(run, desired.copies))
        return new


def joined(done: Sequence[Effect], wanted: Sequence[Effect]) -> list[Effect]:
    """Put what must not be overwritten first: workers that save look for a place which is free by then."""
    return sorted((*done, *wanted), key=lambda effect: not isinstance(effect, Protect))


def first_order(group: WorkerGroup, *, planned: bool) -> HaltWorkers | SaveKept:
    """Return what the workers are asked first, if they are to save before they end."""
    return SaveKept(planned) if group.halt is None else HaltWorkers(group.halt.step)


def late_order(group: WorkerGroup) -> SaveKept:
    """Return the second request for what the workers keep: at the first one, their script put it off."""
    group.put_off = False
    return SaveKept(planned=True, late=True)


def follow_halt(group: WorkerGroup, wanted: Halt | None, now: float) -> list[HaltWorkers]:
    """Pass on the step that the workers keep, once it is named. If none will be named, end their time to come to it."""
    if not group.halting or wanted == group.halt:
        return []
    if wanted is None:
        group.halt_until(now)
        return []
    group.halt = wanted
    return [HaltWorkers(wanted.step)]


def end_halt(group: WorkerGroup, wanted: Halt | None, now: float) -> list[Notice | SaveKept]:
    """Have the workers save the last step that each has done: there is none that all can keep, or not in time."""
    late = [] if wanted is None else [Notice(Level.WARNING, notices.step_not_common(wanted.step), "step_not_common")]
    return [*late, SaveKept(planned=True)] if group.save(now) else []
