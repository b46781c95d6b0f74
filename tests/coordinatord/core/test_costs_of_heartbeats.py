"""A heartbeat costs the same with many nodes as with few, also while nodes leave, wait, evaluate or write to a disk.

The cost is the number of calls of Python functions, so it is exact. A report with news may look at each node once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.events import Reported
from coordinatord.protocol.kept_state import Holding, PersistReport
from coordinatord.protocol.messages import CheckResult, HealthCheck, Observed, Section
from coordinatord.protocol.news import Mark, marked
from tests.support.running_job import running_job
from tests.support.script import Stage, play

SIZES = (8, 32, 128)

SLACK = 12
"""The calls that chance may add: a dict or a heap of another size, and the lines of a text that name some nodes."""

for kind in (Observed, HealthCheck, Holding, PersistReport):
    marked(kind, Mark.QUIET)  # found out at the first use of a class, whatever the number of nodes


def names(size: int) -> list[str]:
    """Return the names of so many nodes."""
    return [f"n{number}" for number in range(1, size + 1)]


def leaving(size: int, *, stays: bool = False) -> Stage:
    """Have nodes leave, of which each has another shard, while their last step is written; `stays` if one does not."""
    nodes = names(size)
    stage, all_nodes = running_job(nodes, f"min={size} max={size} keeps=600s"), " ".join(nodes)
    stage.play(f"step {nodes[0]} 10", f"keep {all_nodes} 1:10 shards={size} halts=yes", "advance 1s")
    stage.play(f"leave {' '.join(nodes[:-1] if stays else nodes)}", f"keep {all_nodes} 1:11 shards={size} halts=11")
    stage.play("advance 1s", f"stopped {all_nodes}")
    assert stage.desired("n1").persist is not None
    assert stage.run.members["n1"].hands_over
    return stage


def written(size: int) -> Stage:
    """Have all nodes write a step while their round goes on; each has reported that it writes."""
    nodes = names(size)
    stage, all_nodes = running_job(nodes, f"min={size} max={size} keeps=60s"), " ".join(nodes)
    stage.play(f"step {nodes[0]} 10", f"keep {all_nodes} 1:10 shards={size} protected=yes", "advance 62s")
    assert stage.desired("n1").persist is not None
    stage.play(f"write {all_nodes} writing")
    return stage


def blocked(size: int) -> Stage:
    """Have nodes wait for a round because one of them does not find a step on the disk."""
    nodes = names(size)
    stage = play(f"join {' '.join(nodes)} min={size} max={size + 1} keeps=600s phase=preparing")
    for node in nodes[1:]:
        stage.play(f"write {node} found=e-0:1:100 of={size}")
    stage.play(f"prepared {' '.join(nodes)}")
    assert "and mounted?" in stage.desired("n1").reason or "does not" in stage.run.keeping.obstacle
    return stage


def evaluating(size: int) -> Stage:
    """Have all workers be in a section, of which that of the first node ends last."""
    nodes = names(size)
    stage = running_job(nodes, f"min={size} max={size}")
    for node in nodes:
        stage.play(f"step {node} 3")
    for node in reversed(nodes):
        stage.play(f"section {node} eval limit=600s", "advance 0.01s")
    return stage


@pytest.mark.parametrize("staged", [leaving, written, blocked, evaluating])
def test_a_heartbeat_costs_the_same_with_many_nodes(staged: Callable[[int], Stage]) -> None:
    costs = [cost_of_heartbeat(staged(size)) for size in SIZES]
    assert max(costs) <= min(costs) + SLACK, costs


@pytest.mark.parametrize("staged", [leaving, written])
def test_progress_of_a_write_costs_what_a_heartbeat_does(staged: Callable[[int], Stage]) -> None:
    costs = []
    for size in SIZES:
        stage = staged(size)
        stage.play("write n1 writing")
        kept = stage.puppets["n1"].observed.kept
        assert kept is not None
        assert kept.persisting is not None
        more = replace(kept, persisting=replace(kept.persisting, bytes=5_000))
        stage.now += 1.0
        costs.append(cost_of_heartbeat(stage, kept=more))
        attempt = kept_of(stage.run).disk.attempt
        assert attempt is not None
        assert attempt.progressed_at == stage.now
    assert max(costs) <= min(costs) + SLACK, costs


def test_when_the_last_section_to_end_ends_earlier_the_next_one_is_found_without_a_search() -> None:
    costs = []
    for size in SIZES:
        stage = evaluating(size)
        sections = stage.run.progress.sections
        assert sections.longest is not None
        until = sections.longest.ends_at
        costs.append(cost_of_heartbeat(stage, section=Section("eval", 600.0, 60.0, 0)))
        assert until - 1.0 < sections.longest.ends_at < until
    assert max(costs) <= min(costs) + SLACK, costs


@pytest.mark.parametrize("stays", [False, True])
def test_news_of_a_node_that_hands_over_looks_at_each_node_a_few_times(stays: bool) -> None:
    costs = []
    for size in SIZES:
        stage = leaving(size, stays=stays)
        kept = stage.puppets["n1"].observed.kept
        assert kept is not None
        costs.append(cost_of_heartbeat(stage, kept=replace(kept, used_bytes=1)) / size)
    assert costs[-1] <= 1.5 * costs[0], costs


def test_a_health_check_that_fails_costs_the_same_on_many_hosts() -> None:
    first, last = [], []
    for size in SIZES:
        nodes, bad = names(size), HealthCheck(1, CheckResult.BAD, "no driver")
        stage = running_job(nodes, f"min={size} max={size}")
        first.append(cost_of_heartbeat(stage, check=bad))
        assert stage.coordinator.cluster.durable.why_quarantined("host-n1")
        for node in nodes[1:]:
            stage.report(node, check=bad)
        last.append(cost_of_heartbeat(stage, check=replace(bad, result=CheckResult.GOOD)))
        assert not stage.coordinator.cluster.durable.why_quarantined("host-n1")
    assert max(first) <= min(first) + SLACK, first
    assert max(last) <= min(last) + SLACK, last


def cost_of_heartbeat(stage: Stage, **changes: Any) -> int:
    """Return how many Python functions the coordinator calls for a heartbeat of the first node with these changes."""
    puppet, calls = stage.puppets["n1"], 0
    section, steps = puppet.observed.section, puppet.observed.steps
    aged = {
        "section": None if section is None else replace(section, age_s=stage.now - puppet.section_at),
        "step_age_s": stage.now - puppet.stepped_at if steps else None,
    }
    observed = replace(puppet.observed, **{"beat": True} | aged | changes)

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    gc.disable()  # what it would finalize for other tests is no cost of this heartbeat
    sys.setprofile(count)
    try:
        stage.coordinator.handle(Reported(puppet.session, observed), stage.now)
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls
