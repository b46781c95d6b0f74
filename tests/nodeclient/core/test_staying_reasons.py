"""Why workers that could have stayed were not begun in place, as their node says it."""

from __future__ import annotations

from coordinatord.protocol.kept_state import Resume
from coordinatord.protocol.messages import Goal
from coordinatord.protocol.worker_starts import WorkerStarts
from nodeclient.core.effects import Terminate
from nodeclient.core.staying import HOLD_S
from tests.support.bench import Bench
from tests.support.builders import LOST_PEER
from tests.support.staying_bench import RESUME, elastic, held

REFUSAL = "it is not in the mood"


def starts_after(bench: Bench, resume: Resume | None = None) -> WorkerStarts | None:
    """Begin round 2, of which one worker is warm and the other one cold; return what the node says of that."""
    bench.receive(Goal.RUN, round=2, resume=resume)
    bench.started(warm=1)
    return bench.observed.begun


def test_why_workers_are_dismissed_is_said() -> None:
    why = "the round begins from nothing, and so do its workers"
    assert starts_after(held()) == WorkerStarts(0, 1, 1, why)
    bench = held()
    bench.advance(HOLD_S)
    assert starts_after(bench, RESUME) == WorkerStarts(0, 1, 1, "no round followed within 60 s")


def test_a_worker_that_refuses_by_itself_says_why_it_ended() -> None:
    bench = elastic()
    bench.refuses(0)
    bench.exited(0, 1)
    bench.left(1)
    bench.swept()
    assert starts_after(bench, RESUME) == WorkerStarts(1, 1, 0, REFUSAL)


def test_a_connection_that_was_lost_while_the_worker_lives_is_why_all_end() -> None:
    bench = elastic()
    bench.stays(0, able=False)
    bench.receive(Goal.STOP)
    bench.exited(0, -15)
    bench.exited(1, -15)
    bench.swept()
    assert starts_after(bench, RESUME) == WorkerStarts(0, 1, 1, "a worker has lost its connection to nodeclient")


def test_a_worker_that_is_killed_loses_its_connection_and_that_is_no_reason() -> None:
    bench = elastic()
    bench.stays(0, able=False)
    bench.exited(0, -9)
    bench.left(1)
    bench.swept()
    assert starts_after(bench, RESUME) == WorkerStarts(1, 1, 0)


def test_a_worker_that_failed_and_cannot_be_held_is_not_waited_for() -> None:
    bench = elastic()
    bench.loses_peer(0, LOST_PEER)
    bench.refuses(0)
    bench.left(1)
    bench.advance(0.0)
    assert bench.count(Terminate) == 1
    bench.exited(0, -15)
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.error, failure.followers) == (LOST_PEER, ())
    bench.swept()
    assert starts_after(bench, RESUME) == WorkerStarts(1, 1, 0, REFUSAL)
