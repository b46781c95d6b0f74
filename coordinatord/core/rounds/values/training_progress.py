"""The progress of a round, by the steps that its nodes report: when the newest was done, and whether training stalls.

Training has stalled when no worker has done a step for longer than the *patience*, which follows from how long steps
have taken (`step_times`). Within a *section* that the script has named, such as an evaluation, the limit of the section
counts instead. `pace` has how fast training goes.

Times are in the coordinator's clock: when a node was heard, minus the reported age. Nothing of this is recorded, since
nodes report it with every heartbeat. Most events are heartbeats, so each costs only a few comparisons here. All else
is computed when it is read.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from coordinatord.core.rounds.values.deadline_heap import DeadlineHeap
from coordinatord.core.rounds.values.due_times import LONG_AGO
from coordinatord.core.rounds.values.pace import Pace
from coordinatord.core.rounds.values.step_times import FirstSteps, StepTimes
from coordinatord.protocol.messages import Observed, Section

STEP_APART_S = 0.5
"""The least seconds between two steps: reports that are closer may be of the same step, over a network whose delay has
changed."""


class OpenSection(Struct, frozen=True):
    """A section that the workers of a node are in: a phase without steps, with the longest time that it may take."""

    section: Section
    began_at: float
    """When it began, in the coordinator's clock."""

    @property
    def ends_at(self) -> float:
        """When its limit is reached."""
        return self.began_at + self.section.limit_s


class Sections:
    """The open sections of a round's workers, by the reports of its nodes."""

    def __init__(self) -> None:
        self._open: dict[int, OpenSection] = {}
        """The sections by group rank."""
        self._ends = DeadlineHeap[int]()
        """Minus the end of each of them, so that the first one is the section that ends last."""
        self.longest: OpenSection | None = None
        """The open section that ends last; None if there is none."""
        self.ended_at = LONG_AGO
        """When a section last ended; `LONG_AGO` before that."""

    def record(self, group_rank: int, section: Section | None, heard_at: float) -> None:
        """Record the section that a node reports; None if its workers are in none."""
        if section is not None:
            opened = self._open[group_rank] = OpenSection(section, heard_at - section.age_s)
            self._ends.set(group_rank, -opened.ends_at)
        elif self._open.pop(group_rank, None) is not None:
            self._ends.discard(group_rank)
            self.ended_at = heard_at
        else:
            return
        last = self._ends.first_key
        self.longest = None if last is None else self._open[last]


class TrainingProgress:
    """The steps of the present round, and how long steps have taken in the run."""

    def __init__(self, patience_given_s: float | None = None) -> None:
        """Begin with the first round; `patience_given_s` is the patience if the user has set it."""
        self._patience_given_s = patience_given_s
        self._step_times = StepTimes()
        self.first_steps = FirstSteps()
        self.clear()

    def begin_round(self, nodes: Collection[object]) -> None:
        """Begin a round of `nodes`."""
        self.first_steps.begin_round(nodes)
        self.clear()

    def clear(self) -> None:
        """Forget the steps of the last round, as a new one begins."""
        self.gone_step: int | None = None
        """The least step of removed members, set by `Run.remove`: without it, the least step of the members that are
        left would count as the one that all workers of the round have reached."""
        self.pace = Pace()
        self.first_at: float | None = None
        """When the first known step was done."""
        self.stepped_at: float | None = None
        """When the newest step of any worker was done."""
        self._stepper: int | None = None
        """The *stepper*: the group rank of the node that reported the newest step."""
        self.idle_s = 0.0
        """The seconds for which the stepper has reported no newer step. Other nodes may report steps less often."""
        self.sections = Sections()

    def record(self, group_rank: int, observed: Observed, before: Observed, heard_at: float) -> None:
        """Record a report of a node whose workers report steps or a section; `before` is its last report."""
        self.sections.record(group_rank, observed.section, heard_at)
        if observed.step_age_s is None or not observed.steps:
            return  # no worker has done a step yet
        self.first_steps.has_two |= observed.stepped_twice
        newest_at = heard_at - observed.step_age_s
        self._record_newest(group_rank, newest_at, heard_at, stepped=_has_stepped(observed, before))
        self.pace.record(group_rank, observed.steps, newest_at, heard_at)

    def _record_newest(self, group_rank: int, at: float, heard_at: float, *, stepped: bool) -> None:
        """Record when the newest step of a node was done; `stepped` if the node reported another step before.

        The node that reports a newer step than any other becomes the stepper. The age of the newest step in the last
        report of the stepper (`idle_s`) counts as the duration of a step: no other was done in that time. The time
        between the two reported steps would be too long: there may have been many between them.
        """
        if self.stepped_at is None:
            self.first_at = at
        elif stepped and at > self.stepped_at + STEP_APART_S:
            self._step_times.record(self._quiet_s, heard_at, stalled=self.is_idle)
        elif group_rank == self._stepper:
            at = self.stepped_at  # the same step, or one too close to tell: another delay must not make it look newer
        else:
            return
        self.stepped_at, self._stepper, self.idle_s = at, group_rank, heard_at - at

    def record_start(self, running_at: float) -> None:
        """Record, at the first step of a round, when all its workers were started."""
        if self.stepped_at is not None:
            self.first_steps.record(max(0.0, self.stepped_at - running_at))
            self._step_times.any_timed = True

    @property
    def is_idle(self) -> bool:
        """Whether reports show that no worker has done a step for longer than the patience, or the section's limit.

        A step within a section begins the limit anew.
        """
        if self.stepped_at is None:
            return False
        longest = self.sections.longest
        if longest is not None:
            return self.stepped_at + self.idle_s >= max(longest.began_at, self.stepped_at) + longest.section.limit_s
        return self._quiet_s >= self.patience_s

    @property
    def _quiet_s(self) -> float:
        """The seconds without a step of any worker since the last section; 0 within a section."""
        if self.stepped_at is None or self.sections.longest is not None:
            return 0.0
        return min(self.idle_s, self.stepped_at + self.idle_s - self.sections.ended_at)

    @property
    def patience_s(self) -> float:
        """The seconds without a step after which training counts as stalled."""
        return self.measured_patience_s if self._patience_given_s is None else self._patience_given_s

    @property
    def measured_patience_s(self) -> float:
        """The same seconds by how long steps have taken, whatever the user has set."""
        return max(self._least_patience_s, self._step_times.patience_s)

    @property
    def _least_patience_s(self) -> float:
        """The least patience, however short the steps and stalls were."""
        return max(self._step_times.least_patience_s, self.first_steps.patience_s)

    def stood_since(self, ended_at: float) -> float | None:
        """Return when the newest step was done, if a round that ended at `ended_at` stood still by then; else None.

        It stood still if the step that never came took longer than any step or stall of late. While the round goes on,
        the patience is longer, because such a step may still come.
        """
        if self.stepped_at is None:
            return None
        quiet_s = min(self._quiet_s, ended_at - self.stepped_at)
        return self.stepped_at if quiet_s >= max(self._least_patience_s, self._step_times.longest_s) else None


def _has_stepped(observed: Observed, before: Observed) -> bool:
    """Whether a worker of a node has done a step since the node's last report.

    The age of the newest step grows until there is another step. The time of arrival would not do: it may be late.
    """
    if observed.steps != before.steps or observed.round != before.round or before.step_age_s is None:
        return True
    return observed.step_age_s is not None and observed.step_age_s < before.step_age_s
