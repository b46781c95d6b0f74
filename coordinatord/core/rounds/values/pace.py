"""The pace of a round's training: how fast its workers do steps, and when they reached a given step.

The workers of a job take their steps together, so the pace of one node is that of all. This node is the *pacer*: the
one of the lowest group rank that reports steps. Times are in the coordinator's clock.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 30.0
"""The pace is the mean over so many seconds: one slow step, or a checkpoint, does not make it jump, and a stall of half
as long halves it."""

SPACING_S = 1.0
"""The least seconds between two samples: closer ones would show the network's delays rather than the job's pace. So
there are at most 32 samples."""


class Pace:
    """Samples of the pacer's steps over the last `WINDOW_S`."""

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
