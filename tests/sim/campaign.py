"""Plays many histories, one seed after another, for a given time, and collects their results."""

from __future__ import annotations

import gc
import time
from collections import Counter
from dataclasses import dataclass, field

from coordinatord.core.rounds.transitions.table import ROWS
from nodeclient.core.table import TABLE
from tests.sim.cut_leaders import cut_leader_world
from tests.sim.finishes import early_leaving_world, finishing_world
from tests.sim.handovers import (
    late_giving_world,
    late_newcomer_world,
    lone_node_world,
    planned_world,
    undrained_world,
)
from tests.sim.history import (
    blackout_world,
    checkpoint_waiting_world,
    coincident_keeping_world,
    coincident_persisting_world,
    coincident_world,
    copying_world,
    differing_world,
    diverging_world,
    going_back_world,
    hanging_world,
    keeping_world,
    lagging_world,
    large_world,
    mixed_world,
    often_heard_world,
    persisting_world,
    slow_store_world,
    small_world,
    standby_world,
    staying_world,
    torn_world,
    waiting_world,
)
from tests.sim.leavers import leaving_world
from tests.sim.lemons import lemon_world
from tests.sim.world import World
from tests.support.rows import node_rows_taken, run_rows_taken

KINDS = (
    small_world,
    keeping_world,
    small_world,
    copying_world,
    small_world,
    persisting_world,
    standby_world,
    staying_world,
    coincident_world,
    coincident_keeping_world,
    torn_world,
    hanging_world,
)
"""The kinds of small worlds, which take turns from seed to seed."""

APART = {
    13: lagging_world,
    17: coincident_persisting_world,
    19: waiting_world,
    23: finishing_world,
    29: late_giving_world,
    31: undrained_world,
    37: leaving_world,
    41: cut_leader_world,
    43: late_newcomer_world,
    47: checkpoint_waiting_world,
    53: often_heard_world,
    59: slow_store_world,
    61: lone_node_world,
    67: differing_world,
    71: blackout_world,
    73: planned_world,
    79: lemon_world,
    83: diverging_world,
    89: going_back_world,
    97: mixed_world,
    101: early_leaving_world,
}
"""Kinds that one in so many seeds plays; the first one that applies. They are not in `KINDS`, so that the other seeds
play what they have always played. Each number is a prime that does not divide the number of `KINDS`, so it takes as
many seeds from each of those."""

LARGE_EVERY = 250
"""One in so many seeds plays a large cluster. The others play small worlds, which find most."""

LARGE_NODES = 100
LARGE_HOURS = 1.0

GARBAGE = 200_000
"""Objects between two collections: a history makes many that live for a moment, and few reference cycles."""


@dataclass
class Findings:
    """The results of a number of histories."""

    seeds: int = 0
    events: int = 0
    seconds: float = 0.0
    """The simulated time."""
    steps: int = 0
    """The steps of all trainings."""
    cpu_s: float = 0.0
    skipped_s: float = 0.0
    """The part of the simulated time that was skipped."""
    faults: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    charged: int = 0
    charged_unseen: int = 0
    run_rows: set[int] = field(default_factory=set)
    """The rows of the coordinator's table, by number."""
    node_rows: set[tuple[str, str]] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    """The errors by seed."""

    def add(self, other: Findings) -> None:
        """Take in the findings of another process."""
        self.seeds += other.seeds
        self.events += other.events
        self.seconds += other.seconds
        self.steps += other.steps
        self.cpu_s += other.cpu_s
        self.skipped_s += other.skipped_s
        self.faults.update(other.faults)
        self.records.update(other.records)
        self.charged += other.charged
        self.charged_unseen += other.charged_unseen
        self.run_rows |= other.run_rows
        self.node_rows |= other.node_rows
        self.failed |= other.failed

    def count(self, world: World) -> None:
        """Take in a history that came to its end."""
        self.events += world.queue.events
        self.seconds += world.queue.time
        self.steps += sum(training.steps for training in world.trainings.values())
        self.skipped_s += world.queue.skipped
        self.faults.update(world.faults)
        self.records.update(world.invariants.facts.records)
        self.charged += sum(world.invariants.facts.charged.values())
        self.charged_unseen += world.invariants.rounds.charged_unseen

    @property
    def rows_never_taken(self) -> list[str]:
        """Return the rows of both tables that no history took, as texts."""
        run = [
            f"{row.source} -> {row.target}: {row.when.__name__}"
            for number, row in enumerate(ROWS)
            if number not in self.run_rows
        ]
        node = [
            f"{phase}: {stimulus}" for phase, stimulus in TABLE if (str(phase), str(stimulus)) not in self.node_rows
        ]
        return run + node


def explore(first: int, step: int, seconds: float, nodes: int = LARGE_NODES, most: int | None = None) -> Findings:
    """Play the histories of the seeds `first`, `first + step` and so on, until the time is up or `most` are played.

    `seconds` are by the wall clock; `nodes` is the size of the large clusters, 0 for none. A broken invariant ends the
    campaign.
    """
    findings = Findings()
    gc.set_threshold(GARBAGE)
    ends_at, cpu_before = time.monotonic() + seconds, time.process_time()
    seed = first
    with run_rows_taken() as run_rows, node_rows_taken() as node_rows:
        while not findings.failed and findings.seeds != most and time.monotonic() < ends_at:
            findings.seeds += 1
            try:
                findings.count(play(seed, nodes))
            except Exception as error:  # noqa: BLE001 - whatever breaks a history is what is looked for
                findings.failed[seed] = explain(seed, error)
            seed += step
    findings.run_rows = {ROWS.index(row) for row in run_rows}
    findings.node_rows = {(str(phase), str(stimulus)) for phase, stimulus in node_rows}
    findings.cpu_s = time.process_time() - cpu_before
    return findings


def play(seed: int, nodes: int = LARGE_NODES, *, loud: bool = False) -> World:
    """Play the history of one seed, of a small world of some kind or a large cluster. Raises whatever breaks it."""
    if nodes and seed % LARGE_EVERY == LARGE_EVERY - 1:
        return large_world(seed, nodes, LARGE_HOURS, loud=loud)
    apart = next((kind for every, kind in APART.items() if seed % every == every - 1), None)
    return (apart or KINDS[seed % len(KINDS)])(seed, loud=loud)


def explain(seed: int, error: Exception) -> str:
    """Return what broke a history, and how to repeat it."""
    return f"{error}\nto repeat: make sim SEED={seed} (the whole history: python -m tests.sim --seed {seed} --trace)"
