"""Plays many histories, one seed after another, for a given time, and collects their results."""

from __future__ import annotations

import gc
import time
from collections import Counter
from dataclasses import dataclass, field

from coordinatord.core.rounds.transitions.table import ROWS
from nodeclient.core.table import TABLE
from tests.sim import cut_leaders, finishes, handovers, history, lemons
from tests.sim.world import World
from tests.support.rows import node_rows_taken, run_rows_taken

KINDS = (
    history.small_world,
    history.keeping_world,
    history.small_world,
    history.copying_world,
    history.small_world,
    history.persisting_world,
    history.standby_world,
    history.staying_world,
    history.coincident_world,
    history.coincident_keeping_world,
    history.torn_world,
    history.hanging_world,
)
"""The kinds of small worlds, which take turns from seed to seed."""

APART = {
    13: history.lagging_world,
    17: history.coincident_persisting_world,
    19: history.waiting_world,
    23: finishes.finishing_world,
    29: handovers.late_giving_world,
    31: handovers.undrained_world,
    37: handovers.leaving_world,
    41: cut_leaders.cut_leader_world,
    43: handovers.late_newcomer_world,
    47: history.checkpoint_waiting_world,
    53: history.often_heard_world,
    59: history.slow_store_world,
    61: handovers.lone_node_world,
    67: history.differing_world,
    71: history.blackout_world,
    73: handovers.planned_world,
    79: lemons.lemon_world,
    83: history.diverging_world,
    89: history.going_back_world,
    97: history.mixed_world,
    101: finishes.early_leaving_world,
    103: finishes.done_world,
    107: history.disk_losing_world,
    109: finishes.late_exit_world,
    113: finishes.leaving_finish_world,
    127: finishes.unended_world,
    131: history.forgetful_world,
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


def play(seed: int, nodes: int = LARGE_NODES) -> World:
    """Play the history of one seed, of a small world of some kind or a large cluster. Raises whatever breaks it."""
    if nodes and seed % LARGE_EVERY == LARGE_EVERY - 1:
        return history.large_world(seed, nodes, LARGE_HOURS)
    apart = next((kind for every, kind in APART.items() if seed % every == every - 1), None)
    return (apart or KINDS[seed % len(KINDS)])(seed)


def explain(seed: int, error: Exception) -> str:
    """Return what broke a history, and how to repeat it."""
    return f"{error}\nto repeat: make sim SEED={seed} (the whole history: python -m tests.sim --seed {seed} --trace)"
