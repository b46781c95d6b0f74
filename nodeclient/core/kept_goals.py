"""The coordinator's goals for kept state: what to protect, resume from, write and copy, and the last step to keep."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.protocol.kept_state import Halt, KeptCopy, KeptStep, PersistOrder, Resume
from coordinatord.protocol.messages import Desired, Goal
from nodeclient.core import notices
from nodeclient.core.effects import (
    CopyKept,
    Effect,
    HaltWorkers,
    Level,
    Notice,
    Persist,
    Protect,
    Restore,
    SaveKept,
    TellAlike,
)
from nodeclient.core.worker_group import WorkerGroup


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


def protect_first(effects: Sequence[Effect]) -> list[Effect]:
    """Return the effects, each `Protect` before all others: workers that save overwrite what is not protected."""
    return sorted(effects, key=lambda effect: not isinstance(effect, Protect))


def first_order(group: WorkerGroup, *, planned: bool) -> HaltWorkers | SaveKept:
    """Return the first request to workers that are to save before they end."""
    return SaveKept(planned) if group.halt is None else HaltWorkers(group.halt.step)


def late_order(group: WorkerGroup) -> SaveKept:
    """Return the second request to workers whose script put off the first one. There is no third."""
    group.put_off = False
    return SaveKept(planned=True, late=True)


def follow_halt(group: WorkerGroup, wanted: Halt | None, now: float) -> list[HaltWorkers]:
    """Pass on the step that all workers are to keep, once it is named. If none will be named, end the wait for it."""
    if not group.halting or wanted == group.halt:
        return []
    if wanted is None:
        group.expire_halt(now)
        return []
    group.halt = wanted
    return [HaltWorkers(wanted.step)]


def end_halt(group: WorkerGroup, wanted: Halt | None, now: float) -> list[Notice | SaveKept]:
    """Have each worker save the last step that it has done, since they did not come to a common step in time.

    The user gets a notice if the coordinator wants a common step.
    """
    notice = []
    if wanted is not None:
        text = notices.step_not_common(wanted.step, writes_checkpoints=group.writes_checkpoints)
        notice.append(Notice(Level.WARNING, text, "step_not_common"))
    return [*notice, SaveKept(planned=True)] if group.save(now) else []
