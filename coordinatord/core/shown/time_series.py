"""The time series of a run for charts: its pace, its time spent training, and its restarts, in a bounded space.

A point stands for a span of the run's age, as `time_ledger` counts it. When there are too many points, each pair of
neighbours becomes one of twice the length. So a run of a minute has a point for each second, and one of a month has a
point for a few hours.
"""

from __future__ import annotations

from array import array

from msgspec import Struct

from coordinatord.core.rounds.values.training_progress import WINDOW_S

POINTS_MAX = 240
"""The most points. From the age of 240 s on, a run has at least half of them. A chart that is 500 pixels wide shows no
more, and the points of one run take 8 KiB."""

SPAN_S = 1.0
"""How long a point is at first. Nodes report their steps once a second."""


class Sample(Struct, frozen=True):
    """The progress of a run at one moment."""

    at: float
    """The run's age in seconds, as `time_ledger` counts it."""
    training_s: float
    """How many of these seconds have gone into training."""
    restarts: int
    steps_per_s: float | None
    """The pace; None if it is not known."""


class TimeSeries:
    """The points of one run, oldest first: four arrays of numbers with one entry for each point."""

    def __init__(self) -> None:
        self.span_s = SPAN_S
        """How long a point is now."""
        self.upto_s = 0.0
        """The age of the run at the last sample; the last point ends there."""
        self.training_s = array("d", [0.0])
        """The training from the beginning of the run to the end of each point."""
        self.restarts = array("l", [0])
        """The restarts up to the end of each point."""
        self._pace_sums = array("d", [0.0])
        self._pace_counts = array("l", [0])
        """The sum and the number of the paces of each point, for their mean."""

    @property
    def steps_per_s(self) -> list[float | None]:
        """The mean pace of each point; None where none is known."""
        sums = zip(self._pace_sums, self._pace_counts, strict=True)
        return [total / count if count else None for total, count in sums]

    def add(self, sample: Sample) -> None:
        """Add a sample; samples come in the order of their time."""
        at = max(sample.at, self.upto_s)  # an earlier age counts as the last one: complete points stay
        while at > POINTS_MAX * self.span_s:
            self._halve()
        self._correct(sample.training_s)
        self._fill(at, sample)
        self.upto_s = at
        self.training_s[-1] = sample.training_s
        self.restarts[-1] = sample.restarts
        self._add_pace(sample.steps_per_s)

    def _halve(self) -> None:
        """Join each pair of neighbours: training and restarts are as of the pair's end, paces are added up."""
        self.span_s *= 2
        if len(self.restarts) % 2:  # the last point has no neighbour yet, so it gets an empty one
            self._append(self.training_s[-1], self.restarts[-1])
        for index in range(0, len(self._pace_counts), 2):
            self._pace_sums[index + 1] += self._pace_sums[index]
            self._pace_counts[index + 1] += self._pace_counts[index]
        for points in (self.training_s, self.restarts, self._pace_sums, self._pace_counts):
            del points[::2]

    def _correct(self, training_s: float) -> None:
        """Take back time that proved to be no training, such as that between a node's death and its detection.

        It is the latest time, so the points from the end backwards are lowered to the new total.
        """
        for index in range(len(self.training_s) - 1, -1, -1):
            if self.training_s[index] <= training_s:
                return
            self.training_s[index] = training_s

    def _fill(self, at: float, sample: Sample) -> None:
        """Complete all points that end before `at`, as if the training since the last sample was spread evenly.

        The first of them may have samples already, and the others have none.
        """
        began_s, restarts = self.training_s[-1], self.restarts[-1]
        took_s = at - self.upto_s
        per_s = (sample.training_s - began_s) / took_s if took_s else 0.0
        # A pace is a mean over the last `WINDOW_S`. If the last sample is no older, the points since then have it too.
        pace = sample.steps_per_s if took_s <= WINDOW_S else None
        while (end := len(self.training_s) * self.span_s) < at:
            self.training_s[-1] = began_s + per_s * (end - self.upto_s)
            # A point that ends at the last sample stays without a pace, and one with paces of its own has no need.
            if not self._pace_counts[-1] and end > self.upto_s:
                self._add_pace(pace)
            self._append(sample.training_s, restarts)

    def _add_pace(self, pace: float | None) -> None:
        if pace is not None:
            self._pace_sums[-1] += pace
            self._pace_counts[-1] += 1

    def _append(self, training_s: float, restarts: int) -> None:
        self.training_s.append(training_s)
        self.restarts.append(restarts)
        self._pace_sums.append(0.0)
        self._pace_counts.append(0)
