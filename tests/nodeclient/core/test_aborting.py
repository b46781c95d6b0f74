"""Workers that abort NCCL to leave their round have longer for it, and their node says how long it took."""

from __future__ import annotations

import pytest

from coordinatord.protocol.messages import Goal
from coordinatord.protocol.worker_starts import WorkerStarts
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S, NCCL_ABORT_TIMEOUT_S
from nodeclient.core.effects import Hold, Kill, Sweep, Terminate
from tests.support.bench import kinds
from tests.support.staying_bench import RESUME, elastic


@pytest.mark.parametrize("asked_before", [True, False])
def test_workers_that_abort_nccl_have_longer_to_leave(asked_before: bool) -> None:
    bench = elastic()
    if asked_before:
        bench.receive(Goal.STOP)
    bench.aborts(0)
    if not asked_before:
        bench.receive(Goal.STOP)
    bench.advance(NCCL_ABORT_TIMEOUT_S - 0.01)
    bench.aborts(0, took_s=NCCL_ABORT_TIMEOUT_S - 0.01)
    assert not bench.count(Terminate)
    assert kinds(bench.left(0)) == [Hold]
    assert kinds(bench.left(1)) == [Hold, Sweep]


def test_a_worker_gains_no_more_time_by_aborting_again() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.aborts(0)
    bench.advance(NCCL_ABORT_TIMEOUT_S - 0.01)
    bench.aborts(0, took_s=1.0)
    bench.aborts(0)
    bench.advance(0.02)
    assert bench.count(Terminate) == bench.count(Kill) == 1


def test_to_abort_nccl_in_one_round_gives_no_time_in_the_next() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.aborts(0)
    bench.left(0)
    bench.left(1)
    bench.swept()
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    bench.started()
    bench.receive(Goal.STOP, round=2)
    bench.advance(ABORT_TIMEOUT_S)
    assert bench.count(Terminate) == 1


@pytest.mark.parametrize(
    ("took_s", "why"),
    [
        (None, "aborting NCCL took longer than 3 s; see --abort-timeout"),
        (0.84, "a worker was not out of its round in time (aborting NCCL took 0.8 s of it); see --abort-timeout"),
    ],
)
def test_why_a_worker_that_aborted_nccl_was_ended_is_said(took_s: float | None, why: str) -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.left(1)
    bench.aborts(0)
    if took_s is not None:
        bench.aborts(0, took_s)
    bench.advance(NCCL_ABORT_TIMEOUT_S)
    bench.exited(0, -9)
    bench.swept()
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    bench.started(warm=1)
    assert bench.observed.begun == WorkerStarts(1, 1, 0, why)
