"""What a node says of workers that were able to stay and had ended by themselves before it knew that."""

from __future__ import annotations

import dataclasses

import pytest

from coordinatord.protocol.messages import Goal
from coordinatord.protocol.worker_starts import WorkerStarts
from nodeclient.core.effects import Kill, Terminate
from tests.support.bench import SETTINGS, Bench
from tests.support.staying_bench import RESUME, elastic


def began_without(bench: Bench, exit_codes: dict[int, int], seen_s_ago: float) -> WorkerStarts | None:
    """Begin round 2 once these workers have ended, as was seen so long ago; return how its workers were begun."""
    for local_rank, exit_code in exit_codes.items():
        bench.exited(local_rank, exit_code, age_s=seen_s_ago)
    bench.swept()
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    bench.started(warm=len(exit_codes))
    return bench.observed.begun


@pytest.mark.parametrize(("exit_code", "seen_s_ago"), [(-9, 0.0), (-15, 0.1), (1, 0.0), (1, 0.1)])
def test_a_worker_that_had_ended_by_itself_is_not_said_to_have_lost_its_connection(
    exit_code: int, seen_s_ago: float
) -> None:
    bench = Bench(dataclasses.replace(SETTINGS, workers=1)).running()
    bench.stays(0)
    bench.stays(0, able=False)
    bench.receive(Goal.STOP, planned=True)
    bench.advance(0.05)
    assert began_without(bench, {0: exit_code}, seen_s_ago) == WorkerStarts(0, 1, 0, "")


def test_a_worker_that_had_ended_by_itself_is_not_said_to_be_late() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.left(0)
    bench.stays(1, able=False)
    bench.advance(0.05)
    assert bench.count(Terminate) == 1, "nobody else can leave"
    assert began_without(bench, {1: -9}, 0.1) == WorkerStarts(1, 1, 0, "")


def test_who_is_ended_with_a_worker_that_had_ended_by_itself_has_a_reason() -> None:
    bench = elastic()
    bench.stays(1, able=False)
    bench.receive(Goal.STOP)
    why = "a worker ended without a report in time, so the others could not be kept"
    assert began_without(bench, {0: -15, 1: -9}, 0.0) == WorkerStarts(0, 2, 0, why)


@pytest.mark.parametrize("exit_code", [-15, 0])
def test_a_worker_that_ends_as_it_was_asked_to_had_lost_its_connection(exit_code: int) -> None:
    bench = elastic()
    bench.stays(1, able=False)
    bench.receive(Goal.STOP, planned=True)
    begun = began_without(bench, {0: -15, 1: exit_code}, 0.0)
    assert begun == WorkerStarts(0, 2, 0, "a worker has lost its connection to nodeclient")


def test_a_worker_that_this_node_kills_is_not_said_to_have_ended_by_itself() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.left(0)
    bench.stays(1, able=False)
    bench.advance(0.05)
    assert bench.count(Kill) == 1
    assert began_without(bench, {1: -9}, 0.0) == WorkerStarts(1, 1, 0, "a worker has lost its connection to nodeclient")
