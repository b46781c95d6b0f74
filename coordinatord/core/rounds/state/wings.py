"""The interfaces of the kernel's two wings; each run has its own two.

The kernel decides whether a round is formed, stopped and ended. A wing only answers, and says when to call it.
Each method has the answer of a wing that does nothing, which a run can have as well.
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


class Wait(Struct, frozen=True):
    """The wait of a node or run before its end."""

    until: float | None = -math.inf
    """The deadline of the wait, in the past without a wait; None if not known yet."""
    why: str = ""
    """Why it waits, as a clause."""
    last_step: str = ""
    """The end of a sentence: where the newest step is, or which step is lost."""


class KeptDesired(Struct, frozen=True):
    """The fields of `Desired` about kept state, with the same names."""

    halt: Halt | None = None
    persist: PersistOrder | None = None
    alike: bool | None = None
    resume: Resume | None = None
    protected: tuple[KeptStep, ...] | None = None
    copies: tuple[KeptCopy, ...] = ()


class KeepingWing:
    """The wing for training state that outlives workers; this one keeps none. It assigns only its own state."""

    changes: int = 0
    """A counter of the changes that affect what nodes are sent."""

    def __init__(self, run: Any) -> None:
        """Begin with a run of which nothing is kept."""

    # Inputs

    def report(self, member: Member, now: float) -> bool:
        """Record a member's report and offer; return whether all nodes are to be told at once."""
        return False

    @property
    def awaits_report(self) -> bool:
        """Whether to call `report` next time even if the node repeats its last report."""
        return False

    def remove(self, member: Member) -> None:
        """Forget a node that is no longer a member."""

    def follow(self, record: Record) -> None:
        """Follow a record, after the run has."""

    def after_restart(self) -> None:
        """Go on after a coordinator restart."""

    # Queries

    def resume_point(self, nodes: Sequence[Member]) -> ResumePoint | None:
        """Return the step that a round of these nodes resumes from; None if they begin from nothing that is kept."""
        return None

    def differing_step(self, point: ResumePoint | None) -> KeptStep | None:
        """Return the newest step that is left out since ranks differ in it; None if `point` is newer."""
        return None

    def resume_text(self, nodes: Sequence[Member]) -> str:
        """Say what a round of these nodes resumes from, as the end of a sentence; empty if nothing has been kept."""
        return ""

    def obstacle(self) -> str:
        """Say why no round may be formed; empty if one may."""
        return ""

    def restore_problem(self) -> str:
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
        """Whether nodes may write to a disk: if so, they do that before they leave."""
        return False

    # Waits

    def may_be_needed(self, member: Member) -> bool:
        """Whether others may yet need what a node keeps: its workers have ended, and those of others have not."""
        return False

    def hold_back(self, members: Sequence[Member], now: float) -> Collection[str]:
        """Return which of these nodes have to stay, outside the round, before they leave."""
        return ()

    def waits(self) -> Mapping[str, Wait]:
        """Return the wait of each node that was held back."""
        return {}

    def leaves_once(self, member: Member) -> str:
        """Complete "it leaves as soon as ..."."""
        return ""

    def wait_at_timeout(self, member: Member) -> Wait:
        """Return the wait of a node whose `--join-timeout` is over."""
        return Wait()

    def wait_at_end(self) -> Wait:
        """Return the wait of a run that is to end, and where its newest step is."""
        return Wait()

    def before_end(self, now: float) -> str:
        """Say what precedes the end of a run between two rounds, to begin a sentence."""
        return ""

    # Its own actions

    def record_ending(self, now: float) -> None:
        """Record whether nodes are about to leave. Called whenever the run's rows are checked."""

    def next_at(self, *, first: bool = False) -> float | None:
        """Return when to call `act`; with `first`, only for actions before nodes leave and rounds form."""
        return None

    def act(self, now: float) -> Iterable[Member]:
        """Do what is due; return the nodes that may have to be sent something."""
        return ()

    def end_round(self, now: float) -> Iterable[Member]:
        """Act at the end of a round, before nodes leave; return as `act` does."""
        return ()

    # Outputs to nodes

    def choose_sources(self) -> None:
        """Choose, once for the round, the nodes from which each node gets its state."""

    def desired(self, member: Member, goal: Goal, *, at_once: bool = False) -> KeptDesired:
        """Return the fields to send a node with its goal; with `at_once`, only the urgent ones."""
        return KeptDesired()

    def halt_sentence(self) -> str:
        """Say after which step all workers of a stopping round end; empty if there is none."""
        return ""


class WatchingWing:
    """The wing for hangs and laggards; this one looks at none."""

    def __init__(self, run: Any) -> None:
        """Begin with a run whose workers were not looked at."""

    notice: str = ""
    """A finding of the last looks without a consequence; empty if there is none."""
    remark: str = ""
    """A warning to users of nodes at work; empty if there is none. Only records change it."""

    def follow(self, record: Record) -> None:
        """Follow a record that has just taken effect: earlier looks may no longer count."""

    def record_answers(self, event: Looked | Compared, now: float) -> bool:
        """Record the workers' answers; return whether they count, so that something may follow."""
        return False

    def next_at(self) -> float | None:
        """Return when to look at the workers, or `NOW`; None until something happens."""
        return None

    def begin_look(self, now: float) -> Look | None:
        """Begin the look that is due; None if a node cannot be asked. Either way, the next one is due later."""
        return None

    def hang(self) -> WorkerFailure | None:
        """Return the failure that ends the round: a worker for which all others wait, and that will not come."""
        return None

    def awaited(self) -> str:
        """Say which worker the others wait for, if the round goes on and no record says so; else empty."""
        return ""

    def laggard(self) -> NodeDrained | None:
        """Return the drain of the node that is late, if the job wants that and can do without the node."""
        return None
