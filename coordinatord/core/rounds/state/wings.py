"""The words by which the kernel knows its two wings, for one run each.

The kernel decides whether a round is formed, stopped and ended. A wing only answers, and asks to be called at a time.
Each word has the answer of a wing that does nothing, which a run can have as well.
"""

# ruff: noqa: ARG002 - a wing that does nothing needs no argument

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from coordinatord.core.rounds.effects import Look
from coordinatord.core.rounds.events import Compared, Looked
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.records import NodeDrained, Record
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.core.rounds.values.root_cause import WorkerFailure
from coordinatord.protocol.kept_state import Halt, KeptCopy, KeptStep, PersistOrder, Resume
from coordinatord.protocol.messages import Goal


class Stay(Struct, frozen=True):
    """What a node or a run that is to go waits for."""

    until: float | None = -math.inf
    """When the wait is over at the latest, in the past if it is over; None if that is not known yet."""
    what: str = ""
    """What is waited for, in words."""
    lost: str = ""
    """Where the newest step is, or which one is lost if nothing comes of it: the end of a sentence."""


class KeptDesired(Struct, frozen=True):
    """What a node is sent about kept state: the fields of `Desired` with these names."""

    halt: Halt | None = None
    persist: PersistOrder | None = None
    alike: bool | None = None
    resume: Resume | None = None
    protected: tuple[KeptStep, ...] | None = None
    copies: tuple[KeptCopy, ...] = ()


class KeepingWing:
    """The wing for training state that outlives workers; this one keeps none. It assigns only its own state."""

    changes: int = 0
    """A number that grows with all of its state that changes what nodes are sent."""

    def __init__(self, run: Any) -> None:
        """Begin with a run of which nothing is kept."""

    # What it hears

    def report(self, member: Member, now: float) -> bool:
        """Take in what a member has reported, and joined with; return whether all nodes are to hear of it at once."""
        return False

    @property
    def awaits_report(self) -> bool:
        """Whether the next report has to be taken in, even if it is the same as the node's last one."""
        return False

    def drop(self, member: Member) -> None:
        """Forget a node that is no longer a member."""

    def follow(self, record: Record) -> None:
        """Take in a record, which the run has followed already."""

    def take_up(self) -> None:
        """Go on after the coordinator was away."""

    # What it answers

    def resume_point(self, nodes: Sequence[Member]) -> ResumePoint | None:
        """Return the step that a round of these nodes resumes from; None if they begin from nothing that is kept."""
        return None

    def differing_step(self, point: ResumePoint | None) -> KeptStep | None:
        """Return the newest step that is left out since ranks differ in it; None if `point` is newer."""
        return None

    def resumes(self, nodes: Sequence[Member]) -> str:
        """Say what a round of these nodes resumes from, as the end of a sentence; empty if nothing has been kept."""
        return ""

    def obstacle(self) -> str:
        """Say why no round may be formed; empty if one may."""
        return ""

    def lost(self) -> str:
        """Say why nodes of the round cannot get what it resumes from; empty if they can."""
        return ""

    @property
    def checkpoint_at(self) -> float | None:
        """When the last checkpoint of the round was written, in the past before one was.

        None if workers lose no step when they are asked to end.
        """
        return None

    @property
    def has_disk(self) -> bool:
        """Whether nodes may write to a disk, so that they stay for that when they leave."""
        return False

    # Who waits for it

    def may_be_needed(self, member: Member) -> bool:
        """Whether others may yet need what a node keeps: its workers have ended, and those of others have not."""
        return False

    def hold_back(self, members: Sequence[Member], now: float) -> Collection[str]:
        """Return which of these nodes have to stay, outside the round, before they leave."""
        return ()

    def stays(self) -> Mapping[str, Stay]:
        """Return what each node waits for that was held back."""
        return {}

    def stays_for(self, member: Member) -> str:
        """Say what such a node waits for."""
        return ""

    def stay_of(self, member: Member) -> Stay:
        """Return what a node waits for whose time to wait for a round is over."""
        return Stay()

    def end(self) -> Stay:
        """Return what a run waits for that is to end, and where its newest step is."""
        return Stay()

    def before_end(self, now: float) -> str:
        """Say what comes first if a run is ended between two rounds, as the beginning of a sentence."""
        return ""

    # What it does by itself

    def note_end(self, now: float) -> None:
        """Note whether nodes are about to go. It is called whenever rows of the run are looked at."""

    def next_at(self, *, first: bool = False) -> float | None:
        """Return when to call `act`; with `first`, for what comes before nodes are let go and rounds are formed."""
        return None

    def act(self, now: float) -> Iterable[Member]:
        """Do what is due; return the nodes that may have to be sent something."""
        return ()

    def end_round(self, now: float) -> Iterable[Member]:
        """Do what a round that has ended leaves to do before nodes leave; return as `act` does."""
        return ()

    # What nodes are sent

    def settle_sources(self) -> None:
        """Settle from which nodes the nodes of the round get their state, once for all that are sent something."""

    def goals(self, member: Member, goal: Goal, *, at_once: bool = False) -> KeptDesired:
        """Return what a node is sent with its goal; with `at_once`, only what cannot wait for its next heartbeat."""
        return KeptDesired()

    def halt_sentence(self) -> str:
        """Say after which step all workers of a round end that is being stopped; empty if there is none."""
        return ""


class WatchingWing:
    """The wing that looks at workers; this one looks at none."""

    def __init__(self, run: Any) -> None:
        """Begin with a run whose workers were not looked at."""

    notice: str = ""
    """What the last looks have shown where nothing is done about it; empty if nothing."""
    remark: str = ""
    """What users of nodes at work are warned of; empty if of nothing. It changes only by records."""

    def follow(self, record: Record) -> None:
        """Take in a record of the run that has just taken effect: what workers did before it may count no more."""

    def take(self, event: Looked | Compared, now: float) -> bool:
        """Take in what workers have answered; return whether it counts, so that something may follow."""
        return False

    def next_at(self) -> float | None:
        """Return when to look at the workers, or `NOW`; None unless something happens."""
        return None

    def look(self, now: float) -> Look | None:
        """Begin the look that is due; None if a node cannot be asked. Either way, the next one is due later."""
        return None

    def hang(self) -> WorkerFailure | None:
        """Return the failure that ends the round: a worker for which all others wait, and that will not come."""
        return None

    def awaited(self) -> str:
        """Say which worker the others wait for, if the round goes on and that is not on record; empty otherwise."""
        return ""

    def laggard(self) -> NodeDrained | None:
        """Return the drain of the node that is late, if the job wants that and can do without the node."""
        return None
