"""How far a round has come, by what its nodes say of their workers' steps: where it is, and how many steps a second.

The workers of a job take their steps together, so one node tells the pace of all: the first of those that report, by
group rank. Times are the coordinator's, when a node was heard less the age that it gave. Nothing of this is recorded:
nodes say it again with every heartbeat. Heartbeats are most of what the coordinator does, so each of them costs one
comparison here, and the rest is left to those who ask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from coordinatord.wire.messages import Observed

WINDOW_S = 30.0
"""The pace is the mean of so long: one slow step, or a checkpoint, does not make it jump, and a stall shows at once and
is clear after half of it."""

SPACING_S = 1.0
"""Between two samples that are kept, and at least from the first to the last of them: a shorter time would say more of
the network's delays than of the job's pace. So there are never more than 32."""


class Progress:
    """What is known of the steps of one round, and then of the next."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, as a new round begins."""
        self.gone: int | None = None
        """The least step of nodes that are no members any more: where a round stopped stays known without them."""
        self._pacer: int | None = None
        """The group rank of the node that tells the pace."""
        self._steps: tuple[int | None, ...] = ()
        """What it last said."""
        self._heard_at = 0.0
        self._samples: deque[tuple[float, int]] = deque()
        """When it was at which step; the last one is where it is."""

    def note(self, group_rank: int, observed: Observed, heard_at: float) -> None:
        """Take in what a node of the round says that has steps to report, or will have."""
        if observed.step_age_s is None:
            return  # none yet
        if group_rank != self._pacer:
            if self._pacer is not None and group_rank > self._pacer:
                return
            self._pacer, self._steps = group_rank, ()
            self._samples.clear()
        self._heard_at = heard_at
        if observed.steps != self._steps:
            self._steps = observed.steps
            step = max((step for step in observed.steps if step is not None), default=0)
            self._sample(heard_at - observed.step_age_s, step)
        samples = self._samples
        while len(samples) > 2 and samples[1][0] <= heard_at - WINDOW_S:  # noqa: PLR2004 - two make a pace
            samples.popleft()

    def _sample(self, at: float, step: int) -> None:
        samples = self._samples
        if samples and step < samples[-1][1]:
            samples.clear()  # the script counts anew
        if samples:
            at = max(at, samples[-1][0])  # the word before took its time to come
        if len(samples) > 1 and at - samples[-2][0] < SPACING_S:
            samples.pop()
        samples.append((at, step))

    @property
    def steps_per_s(self) -> float | None:
        """The mean pace of late; None before there are two different steps to tell it by.

        It falls as soon as the next step takes longer than those before it, and towards 0 while none comes.
        """
        if not self._samples:
            return None
        (began_at, first), (latest_at, last) = self._samples[0], self._samples[-1]
        if first == last or latest_at - began_at < SPACING_S:
            return None
        mean_s = (latest_at - began_at) / (last - first)
        until = max(latest_at, self._heard_at - mean_s)
        return (last - first) / (until - began_at)


def least_step(heard: Iterable[Observed], run: str, number: int) -> int | None:
    """Return the step that all workers of a round have come to, of those that report any; None if none does."""
    known = (step for one in heard if (one.round, one.run) == (number, run) for step in one.steps if step is not None)
    return min(known, default=None)
