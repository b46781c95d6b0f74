"""Compares when workers arrived in the same collectives: which worker comes last, and by how much.

A collective ends for all workers at once, so the duration of a step does not show which of them is slow; the time of
arrival does. To compare the times of two hosts, the offset of their clocks is needed. A node's answer has the time of
its clock, which was read between question and answer. So the offset may be wrong by half of the time between these.

The same answers show whether workers are *at rest*: none has arrived in a collective for much longer than is usual. If
workers report no steps, only this shows that a round may hang. The usual pause follows from the pauses between
collectives, by the same rule as between steps (`StepTimes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from math import sqrt
from statistics import median, median_low

from msgspec import Struct

from coordinatord.core.rounds.events import NodeArrivals
from coordinatord.core.rounds.values.training_progress import STALL_GAPS, STALL_S_MIN, STALL_STEPS
from coordinatord.protocol.arrival_messages import WorkerArrivals, unpack_ages

COLLECTIVES_MIN = 16
"""The least number of collectives to compare: with fewer, a worker may be last by chance."""

LAST_SHARE = 2 / 3
"""The least share of the collectives in which a laggard is last."""

CHANCE = 1.25
"""Divided by the root of the number of collectives, this is how far chance may lift a worker above its fair share.

Of n equally fast workers, each is last in 1/n of the collectives. With two workers, the standard deviation of a share
is 0.5, divided by that root. The limit is 2.5 standard deviations: one of the two exceeds it once in a hundred
comparisons."""

STEP_SHARE = 0.02
"""The least lateness of a laggard, as a part of a step: less is not worth a remedy."""

LATE_S_MIN = 0.001
"""The least lateness of a laggard, in seconds: the system's scheduler may cause less."""

DRIFT = 100e-6
"""How many seconds two clocks may drift apart in a second: each quartz clock by half of that."""


class Offset(Struct, frozen=True):
    """The coordinator's clock minus the clock of a node, by one answer of the node."""

    shift_s: float
    error_s: float
    """How far `shift_s` may have been wrong at that answer, to either side."""
    at: float
    """When the node answered."""

    def error_at(self, now: float) -> float:
        """Return how far the offset may be wrong at `now`."""
        return self.error_s + DRIFT * (now - self.at)


def better_offset(known: Offset | None, answer: NodeArrivals) -> Offset:
    """Return the more exact offset: the known one with its drift since, or that of a new answer.

    A known offset that the new answer rules out is dropped: the host was rebooted, and its clock began anew.
    """
    new = Offset(answer.answered_at - answer.clock_s, answer.error_s, answer.answered_at)
    if known is None or new.error_s <= known.error_at(new.at):
        return new
    return new if abs(known.shift_s - new.shift_s) > new.error_s + known.error_at(new.at) else known


class ArrivalTimes(Struct, frozen=True):
    """When one worker arrived in consecutive collectives of one process group."""

    rank: int
    node: str
    error_s: float
    """How far all of the times may be wrong, by the offset of the node's clock."""
    first: int
    """The number of the first collective."""
    times: Sequence[float]
    """The arrivals in each of the collectives, by the coordinator's clock."""


class WorkerLateness(Struct, frozen=True):
    """How late one worker is, by one comparison."""

    rank: int
    node: str
    last_share: float
    """The share of the collectives in which it arrived last, 0 to 1."""
    is_usually_last: bool
    """Whether `last_share` is at least `LAST_SHARE`, and more than chance explains, see `CHANCE`."""
    late_s: float
    """How many seconds after the worker in the middle it arrives. Of each step the largest lateness counts, because
    with DDP each bucket of gradients is late by a bit more. This is the median over the steps."""


class Laggard(Struct, frozen=True):
    """A worker that delays all others, or a node whose workers take turns at that."""

    node: str
    rank: int | None
    """None if the workers of the node take turns."""
    last_share: float
    late_s: float
    """The lateness of the worker in seconds. Of a node: how much later its median worker is than the median of all
    others."""


class Lateness(Struct, frozen=True):
    """How late the workers of a round are, by one comparison."""

    ranks: tuple[WorkerLateness, ...]
    """The workers that could be compared, by rank."""
    step_s: float | None
    """How long a step takes; None if no worker reports steps. Then each `late_s` is per collective."""
    laggard: Laggard | None
    """The worker or node that delays the others; None if there is none, or if it may be due to chance or the clocks."""

    @property
    def factor(self) -> float:
        """How many times as long each step takes because of the laggard; 1 if there is none, or it is not known."""
        laggard = self.laggard
        if laggard is None or self.step_s is None:
            return 1.0
        return self.step_s / max(self.step_s - laggard.late_s, 1e-9)


def arrival_times(answer: NodeArrivals, offset: Offset, now: float) -> Iterator[tuple[str, ArrivalTimes]]:
    """Yield the arrivals of a node's workers, each with its process group."""
    answered_at = answer.clock_s + offset.shift_s
    for worker in answer.workers:
        for group in worker.groups:
            times = [answered_at - age_s for age_s in unpack_ages(group.ages)]
            yield group.group, ArrivalTimes(worker.rank, answer.node, offset.error_at(now), group.first, times)


def compare_arrivals(arrivals: Iterable[tuple[str, ArrivalTimes]], step_s: float | None) -> Lateness | None:
    """Return how late workers are, by their arrivals in each process group; None if there is too little to compare.

    A worker in several groups counts by its lateness in the group where it is latest.
    """
    groups: dict[str, dict[int, ArrivalTimes]] = {}
    for name, arrival in arrivals:
        groups.setdefault(name, {})[arrival.rank] = arrival
    latest: dict[int, WorkerLateness] = {}
    slow_nodes: list[Laggard] = []
    error_s = 0.0
    for members in groups.values():
        compared = _compare_group(list(members.values()), step_s)
        slow_nodes += _slow_nodes(compared)
        if compared:
            error_s = max(error_s, _clock_error_s(members.values()))
        for worker in compared:
            known = latest.get(worker.rank)
            if known is None or worker.late_s > known.late_s:
                latest[worker.rank] = worker
    if not latest:
        return None
    ranks = tuple(latest[rank] for rank in sorted(latest))
    last = (worker for worker in ranks if worker.is_usually_last)
    slow_workers = (Laggard(worker.node, worker.rank, worker.last_share, worker.late_s) for worker in last)
    # The first one, workers before nodes, whose lateness is above all limits and the error of clocks.
    least_s = max(LATE_S_MIN, error_s, STEP_SHARE * (step_s or 0.0))
    laggard = next((found for found in chain(slow_workers, slow_nodes) if found.late_s >= least_s), None)
    return Lateness(ranks, step_s, laggard)


def _slow_nodes(ranks: Sequence[WorkerLateness]) -> Iterator[Laggard]:
    """Yield the nodes whose workers take turns at being last in a group, as on a slow host.

    A node that has half of the group's workers also has the last worker in half of the collectives, by chance. So the
    share that a laggard needs begins there, and goes two thirds of the way to 1: in this example it is 5/6. It is never
    less than 2/3, so at most one node of a group has it.
    """
    by_node: dict[str, list[WorkerLateness]] = {}
    for worker in ranks:
        by_node.setdefault(worker.node, []).append(worker)
    for node, own in by_node.items():
        last_share = sum(worker.last_share for worker in own)
        by_chance = len(own) / len(ranks)
        if len(own) < len(ranks) and last_share >= by_chance + LAST_SHARE * (1 - by_chance):
            others = [worker.late_s for worker in ranks if worker.node != node]
            yield Laggard(node, None, last_share, median(worker.late_s for worker in own) - median(others))


def _clock_error_s(members: Iterable[ArrivalTimes]) -> float:
    """Return the usual error in seconds of comparing two workers' times; 0 if all workers are on one node.

    Two clocks are compared, and each may be wrong by its own error.
    """
    by_node = {arrival.node: arrival.error_s for arrival in members}
    return 2 * median(by_node.values()) if len(by_node) > 1 else 0.0


def _compare_group(members: Sequence[ArrivalTimes], step_s: float | None) -> list[WorkerLateness]:
    """Return how late each worker of a group is; nothing if there is too little to compare.

    A collective counts only if all members report their arrivals in it.
    """
    first = max(arrival.first for arrival in members)
    rows = min(arrival.first + len(arrival.times) for arrival in members) - first
    if len(members) < 2 or rows < COLLECTIVES_MIN:  # noqa: PLR2004 - one worker has none to be compared with
        return []
    columns = [arrival.times[first - arrival.first :][:rows] for arrival in members]
    last = [0] * len(members)
    late: list[list[float]] = [[] for _ in members]
    middles = []
    for row in zip(*columns, strict=True):
        middle = median_low(row)
        middles.append(middle)
        last[row.index(max(row))] += 1
        for times, at in zip(late, row, strict=True):
            times.append(at - middle)
    per_step = _collectives_per_step((middles[-1] - middles[0]) / (rows - 1), step_s, rows)
    least_share = max(LAST_SHARE, 1 / len(members) + CHANCE / sqrt(rows))
    shares = [number / rows for number in last]
    return [
        WorkerLateness(arrival.rank, arrival.node, share, share >= least_share, _usual_lateness(own, per_step))
        for arrival, share, own in zip(members, shares, late, strict=True)
    ]


def _collectives_per_step(apart_s: float, step_s: float | None, rows: int) -> int:
    """Return how many of `rows` collectives a step has, if they are `apart_s` apart; 1 if that is not known."""
    if step_s is None or apart_s <= 0:
        return 1
    return min(max(1, round(step_s / apart_s)), rows)


def _usual_lateness(late: Sequence[float], per_step: int) -> float:
    """Return the median, over the steps, of the largest lateness within a step.

    Steps are counted back from the last collective. The oldest ones that fill no step are left out.
    """
    return median(max(late[end - per_step : end]) for end in range(len(late), per_step - 1, -per_step))


class Pause(Struct, frozen=True):
    """The present pause between collectives, in which no worker has come to one."""

    lasts_s: float
    """How long it has lasted so far."""
    longest_s: float
    """The longest pause between the collectives before; 0 if only one is known."""
    patience_s: float
    """How long it may last before the workers count as at rest."""

    @property
    def is_rest(self) -> bool:
        """Whether the workers are at rest."""
        return self.lasts_s >= self.patience_s


def present_pause(nodes: Sequence[NodeArrivals]) -> Pause | None:
    """Return the present pause of all workers; None if none reports a collective.

    The worker that arrived last decides, by the pauses between its own collectives.
    """
    reported = [ages for node in nodes for worker in node.workers if (ages := _ages_of(worker))]
    latest = min(reported, key=lambda ages: ages[-1], default=None)
    if latest is None:
        return None
    pauses = [before - after for before, after in pairwise(latest)]
    return Pause(latest[-1], max(pauses, default=0.0), _patience_s(pauses))


def _ages_of(worker: WorkerArrivals) -> list[float]:
    """Return how long ago a worker arrived in each of its last collectives, of all groups, the oldest one first."""
    return sorted((age_s for group in worker.groups for age_s in unpack_ages(group.ages)), reverse=True)


def _patience_s(pauses: Sequence[float]) -> float:
    """Return how many seconds may pass without a collective, by the pauses between the last ones of one worker.

    A pause that is longer than the earlier ones allow was a stall. The next one may be `STALL_GAPS` times as long as a
    stall, and `STALL_STEPS` times as long as any other pause.
    """
    patience_s = STALL_S_MIN
    for pause_s in pauses:
        patience_s = max(patience_s, pause_s * (STALL_GAPS if pause_s >= patience_s else STALL_STEPS))
    return patience_s
