"""The progress of a round, by the steps that its nodes report: when the newest was done, and whether training stalls.

Training has stalled when no worker has done a step for longer than the *patience*, which follows from how long steps
have taken (`StepTimes`). Within a *section* that the script has named, such as an evaluation, the limit of the section
counts instead. `Pace` has how fast training goes.

Times are in the coordinator's clock: when a node was heard, minus the reported age. Nothing of this is recorded, since
nodes report it with every heartbeat. Most events are heartbeats, so each costs only a few comparisons here. All else
is computed when it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from msgspec import Struct

from coordinatord.core.rounds.values.deadline_heap import DeadlineHeap
from coordinatord.core.rounds.values.due_times import LONG_AGO
from coordinatord.protocol.messages import Observed, Section

STALL_S_MIN = 10.0
"""The least patience in seconds, however short the steps are: hosts have hiccups."""

STALL_STEPS = 10
"""The patience as a multiple of the slowest recent step: validation and checkpoints make gaps, too."""

STALL_GAPS = 2
"""The patience as a multiple of an earlier stall that ended: after one evaluation, another is expected. With
`STALL_STEPS` instead, a hang after an evaluation of ten minutes would show only after an hour and a half."""

STALL_S_UNKNOWN = 300.0
"""The least patience in seconds while no step was timed, as after a restart of the coordinator: a step of a large model
may take a minute."""

FIRST_STEP_S_MIN = 60.0
"""The least seconds that a round after a hang is given for its first step, however short that was in earlier rounds."""

FIRST_STEP_STARTS = 3
"""The same time as a multiple of the slowest first step of earlier rounds: later rounds also load a checkpoint."""

LATELY_S = 3_600.0
"""The seconds of one window of recent steps. The slowest step of the present window and the one before counts, so each
step counts for an hour or two."""

WINDOW_S = 30.0
"""The pace is the mean over so many seconds: one slow step, or a checkpoint, does not make it jump, and a stall of half
as long halves it."""

SPACING_S = 1.0
"""The least seconds between two samples of the pace: closer ones would show the network's delays rather than the job's
pace. So there are at most 32 samples."""

STEP_APART_S = 0.5
"""The least seconds between two steps: reports that are closer may be of the same step, over a network whose delay has
changed."""


class StepTimes:
    """How long steps of a run have taken of late, and stalls that a step ended."""

    def __init__(self) -> None:
        self._slowest = [0.0, 0.0]
        """The seconds of the slowest step in the present window of `LATELY_S`, and in the one before."""
        self._stalls = [0.0, 0.0]
        """The seconds of the longest stall, in the same windows."""
        self._window_at: float | None = None
        """When the present window began; None before the first one."""
        self.any_timed = False
        """Whether any step of the run was timed, or the start before a first one."""

    def record(self, quiet_s: float, heard_at: float, *, stalled: bool) -> None:
        """Record a step before which there was none for `quiet_s` seconds; `stalled` if training had stalled then."""
        if self._window_at is None or heard_at > self._window_at + LATELY_S:
            self._slowest, self._stalls = [0.0, self._slowest[0]], [0.0, self._stalls[0]]
            self._window_at = heard_at
        longest = self._stalls if stalled else self._slowest
        longest[0] = max(longest[0], quiet_s)
        self.any_timed = True

    @property
    def longest_s(self) -> float:
        """The seconds of the slowest step or the longest stall, whichever is longer; 0 without any."""
        return max(*self._slowest, *self._stalls)

    @property
    def patience_s(self) -> float:
        """The seconds without a step that are too many, by these steps and stalls; 0 without any."""
        return max(STALL_STEPS * max(self._slowest), STALL_GAPS * max(self._stalls))


class FirstSteps:
    """How long the first steps of rounds took, and how long the first two of the present round may take."""

    def __init__(self) -> None:
        self._nodes: Collection[object] = ()
        """The nodes of the present round."""
        self._slowest_s = 0.0
        """The seconds of the slowest start of a round of these nodes: until its first step, or its stop without one."""
        self._has_hung = False
        """Whether the last round that was stopped had hung."""
        self._may_hang_again = False
        """Whether the round before the present one had hung, and had the same nodes."""
        self._second_within_s = 0.0
        """How many seconds the second step of the round may take; 0 before the first one."""
        self.has_two = False
        """Whether a worker has done two steps of the round."""

    def begin_round(self, nodes: Collection[object]) -> None:
        """Begin a round of `nodes`, without a step."""
        self._may_hang_again = self._has_hung and nodes == self._nodes
        if nodes != self._nodes:
            self._nodes, self._slowest_s = nodes, 0.0
        self._second_within_s, self.has_two = 0.0, False

    def record(self, took_s: float) -> None:
        """Record how long the first step of the round took. The second one may compile as much again."""
        self._slowest_s = max(self._slowest_s, took_s)
        self._second_within_s = self.within_s(STALL_STEPS * took_s)

    def end_round(self, without_step_s: float | None, *, has_hung: bool) -> None:
        """Record that the round is stopped, whether it had hung, and for how long its workers ran without a step.

        `without_step_s` is None if they came to a step. Else it counts as the time to a first step.
        """
        self._has_hung = has_hung
        self._slowest_s = max(self._slowest_s, without_step_s or 0.0)

    def within_s(self, most_s: float) -> float:
        """Return how many seconds the first or second step may take: `most_s`, or less if a hang may be back."""
        if not self._may_hang_again:
            return most_s
        return min(most_s, max(FIRST_STEP_S_MIN, FIRST_STEP_STARTS * self._slowest_s))

    @property
    def patience_s(self) -> float:
        """The least patience in seconds between the first step of the round and the second; 0 before and after."""
        return 0.0 if self.has_two else self._second_within_s


class Pace:
    """How fast the workers of a round do steps, and when they reached a given one, by samples over the last `WINDOW_S`.

    The workers of a job take their steps together, so the pace of one node is that of all. This node is the *pacer*:
    the one of the lowest group rank that reports steps.
    """

    def __init__(self) -> None:
        self._pacer: int | None = None
        """The pacer's group rank."""
        self._steps: tuple[int | None, ...] = ()
        self._heard_at = 0.0
        """The last report of the pacer, and its time."""
        self._samples: deque[tuple[float, int]] = deque()
        """Times, each with the furthest step of the pacer's workers then; the last one is their present step."""
        self.furthest: int | None = None
        """The furthest step that a pacer has reported. `Run.remove` raises it to that of a node that is removed."""
        self.counts_anew = False
        """Whether the script has restarted its count of steps within the round."""

    def record(self, group_rank: int, steps: tuple[int | None, ...], at: float, heard_at: float) -> None:
        """Record the steps of a node's workers, the newest of which was done at `at`, as reported at `heard_at`."""
        if group_rank != self._pacer:
            if self._pacer is not None and group_rank > self._pacer:
                return
            self._pacer, self._steps = group_rank, ()
            self._samples.clear()
        self._heard_at = heard_at
        if steps != self._steps:
            self._steps = steps
            self._sample(at, max((step for step in steps if step is not None), default=0))
        samples = self._samples
        while len(samples) > 2 and samples[1][0] <= heard_at - WINDOW_S:  # noqa: PLR2004 - two make a pace
            samples.popleft()

    def _sample(self, at: float, step: int) -> None:
        """Record the pacer's furthest step as of `at`."""
        samples = self._samples
        if samples and step < samples[-1][1]:
            samples.clear()
            self.counts_anew = True
        if self.furthest is None or step > self.furthest:
            self.furthest = step
        if samples:
            at = max(at, samples[-1][0])  # the message before may have been slower than this one
        if len(samples) > 1 and at - samples[-2][0] < SPACING_S:
            samples.pop()
        samples.append((at, step))

    def reached_at(self, step: int) -> float | None:
        """Return when the round reached a step, interpolated between two reports; None if it has not.

        For a script that counts its steps anew it is the time of the newest step.
        """
        if self.counts_anew:
            return self._samples[-1][0]
        after: tuple[float, int] | None = None
        for at, known in reversed(self._samples):
            if known < step:
                return None if after is None else at + (after[0] - at) * (step - known) / (after[1] - known)
            after = at, known
        return None if after is None else after[0]

    @property
    def steps_per_s(self) -> float | None:
        """The mean recent pace, which falls while a step takes longer than usual; None while `usual_s` is None."""
        usual_s = self.usual_s
        if usual_s is None:
            return None
        (began_at, first), (latest_at, last) = self._samples[0], self._samples[-1]
        until = max(latest_at, self._heard_at - usual_s)
        return (last - first) / (until - began_at)

    @property
    def usual_s(self) -> float | None:
        """The mean seconds of a recent step; None before two samples with different steps, `SPACING_S` apart."""
        if not self._samples:
            return None
        (began_at, first), (latest_at, last) = self._samples[0], self._samples[-1]
        if first == last or latest_at - began_at < SPACING_S:
            return None
        return (latest_at - began_at) / (last - first)


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
        return max(STALL_S_MIN if self._step_times.any_timed else STALL_S_UNKNOWN, self.first_steps.patience_s)

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
