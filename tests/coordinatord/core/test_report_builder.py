"""Every node that the root cause concerns receives it, and the status shows it."""

from typing import Any, cast

import pytest
from msgspec import structs

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Connected, Disconnected, Reported
from coordinatord.core.rounds.queries.report_builder import cause_in_brief
from coordinatord.core.rounds.values.records import RoundEnded, RunEnded
from coordinatord.core.shown.job_view import job_view
from coordinatord.hints.failure_status import failure_status
from coordinatord.protocol.messages import (
    Cause,
    Desired,
    EarlyEnd,
    Ended,
    Failure,
    Follower,
    Goal,
    Phase,
    Report,
    SecondaryFailure,
    Straggler,
)
from tests.support.builders import LOST_PEER, a_coordinator, a_failure, a_join, a_spec, an_observed, let_pass

ERROR = a_failure(
    rank=1,
    exit_code=3,
    error="ValueError: no",
    last_lines=("Traceback", "ValueError: no"),
    age_s=0.5,
    log="/logs/stderr.log",
)


class Job:
    """Two nodes in their first round."""

    def __init__(self, max_restarts: int = 3) -> None:
        self.coordinator: Coordinator = a_coordinator()
        self.heard: dict[int, Desired] = {}
        self.records: list[Any] = []
        for session, node in ((1, "a"), (2, "b")):
            self.handle(Connected(session, a_join(node, spec=a_spec(2, 2, max_restarts)), "10.0.0.1", "10.0.0.9"))
        for session in (1, 2):
            self.send(session, Phase.RUNNING)

    def handle(self, event: Any, now: float = 0.0) -> None:
        """Handle an event, and note the messages and records."""
        batch = self.coordinator.handle(event, now)
        self.records += batch.records
        for effect in batch.effects:
            if hasattr(effect, "message"):
                self.heard[effect.session] = cast("Desired", effect.message)

    def send(
        self, session: int, phase: Phase, failure: Failure | None = None, number: int = 1, now: float = 0.0
    ) -> None:
        """Have a node report how its part of a round stands."""
        beat = an_observed(run="e-1", round=number, phase=phase, failure=failure, beat=True)
        self.handle(Reported(session, beat), now)

    def fail(self, consequence: Failure | None = None, now: float = 10.0) -> None:
        """Let a worker of node b fail, and perhaps one of node a after it; then all workers are dead."""
        self.send(2, Phase.FAILED, ERROR, now=now)
        self.send(1, Phase.FAILED if consequence else Phase.STOPPED, consequence, now=now)

    def report(self, session: int) -> Report | None:
        """Return the last report that a node received."""
        return self.heard[session].report


def test_the_root_cause_is_sent_to_every_node_with_its_next_round_until_its_workers_run() -> None:
    job = Job()
    job.fail()
    for session in (1, 2):
        assert job.heard[session].goal is Goal.RUN
        assert (report := job.report(session)) is not None
        assert (report.round, report.nodes, report.node, report.host) == (1, 2, "b", "host-b")
        assert report.failure == ERROR
    job.send(1, Phase.STARTING, number=2, now=12.0)
    assert (report := job.report(1)) is not None
    assert report.failure.age_s == 2.5
    job.send(1, Phase.RUNNING, number=2, now=13.0)
    assert job.report(1) is None


def test_a_run_that_ends_of_it_sends_the_root_cause_with_its_end() -> None:
    job = Job(max_restarts=0)
    job.fail()
    for session in (1, 2):
        assert job.heard[session].goal is Goal.EXIT
        assert job.report(session) is not None
    (end,) = [record for record in job.records if isinstance(record, RunEnded)]
    assert end.report == job.report(1)


def test_workers_of_its_own_node_that_failed_later_are_consequences_too_though_reported_later() -> None:
    job = Job()
    job.send(2, Phase.STOPPING, ERROR, now=10.0)
    grown = structs.replace(ERROR, followers=(Follower(2, 1), Follower(3, 7)))
    job.send(2, Phase.FAILED, grown, now=10.0)
    job.send(1, Phase.FAILED, a_failure(rank=0, age_s=0.25), now=10.0)
    assert (report := job.report(1)) is not None
    assert report.consequences == (
        SecondaryFailure("b", 2, 1),
        SecondaryFailure("b", 3, 7),
        SecondaryFailure("a", 0, 1),
    )
    assert (report.failure.rank, report.consequences_count) == (1, 3)


def test_a_round_that_ended_by_the_loss_of_a_node_has_no_report() -> None:
    job = Job()
    job.handle(Disconnected(2), 10.0)
    job.send(1, Phase.FAILED, a_failure(age_s=0.0), now=10.0)
    let_pass(job.coordinator, 12.0)
    job.send(1, Phase.FAILED, a_failure(age_s=2.0), now=12.0)
    ended = [record for record in job.records if isinstance(record, RoundEnded)]
    assert [record.report for record in ended] == [None] * len(ended)
    assert job.report(1) is None


@pytest.mark.parametrize(
    ("left", "then"),
    [
        ((True, True), "2 other workers left the round in consequence: rank 0 on a (left its round), "),
        ((True, False), "2 other workers failed or left the round in consequence: rank 0 on a (left its round), "),
    ],
)
def test_a_worker_that_has_left_its_round_is_not_said_to_have_failed(left: tuple[bool, bool], then: str) -> None:
    job = Job()
    job.fail(a_failure(rank=0, left=left[0], followers=(Follower(2, 1, left=left[1]),)))
    assert (report := job.report(1)) is not None
    last = "left its round" if left[1] else "exit code 1"
    assert failure_status(report).then == f"{then}rank 2 on a ({last})"


def test_who_failed_with_the_same_error_did_not_do_so_in_consequence() -> None:
    job = Job()
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"
    here = structs.replace(ERROR, error=missing, followers=(Follower(2, 1, same_error=True), Follower(3, -6)))
    job.send(2, Phase.FAILED, here, now=10.0)
    there = a_failure(rank=0, error=missing, age_s=0.25, followers=(Follower(4, 1, same_error=True), Follower(5, -6)))
    job.send(1, Phase.FAILED, there, now=10.0)
    assert (report := job.report(1)) is not None
    assert [(consequence.rank, consequence.same_error) for consequence in report.consequences] == [
        (2, True),
        (3, False),
        (0, True),
        (4, True),
        (5, False),
    ]
    assert (report.consequences_count, report.same_error_count) == (5, 3)
    assert failure_status(report).then == (
        "5 other workers failed, 3 of them with the same error: rank 2 on b (exit code 1), rank 0 on a (exit code 1), "
        "rank 4 on a (exit code 1); and in consequence: rank 3 on b (killed by SIGABRT), "
        "rank 5 on a (killed by SIGABRT)"
    )


def test_another_error_on_another_node_makes_no_follower_there_the_same() -> None:
    job = Job()
    job.fail(a_failure(rank=0, error="OSError: no", age_s=0.25, followers=(Follower(4, 1, same_error=True),)))
    assert (report := job.report(1)) is not None
    assert (report.consequences_count, report.same_error_count) == (2, 0)


def test_workers_that_had_ended_with_0_are_named_with_how_long_before_that_was() -> None:
    job = Job()
    ended = (Ended(2, 1.5), Ended(3, 0.25))
    job.handle(Reported(1, an_observed(run="e-1", round=1, phase=Phase.STOPPED, ended=ended)), 10.0)
    job.send(2, Phase.FAILED, ERROR, now=10.0)
    assert (report := job.report(1)) is not None
    assert report.early == (EarlyEnd("a", 2, 1.0),)  # the other one ended after it
    assert failure_status(report).before == "rank 2 on a had ended with 0, 1.0 s before"


def test_who_left_early_is_the_root_cause_of_a_lost_connection() -> None:
    job = Job()
    job.handle(Reported(1, an_observed(run="e-1", round=1, phase=Phase.STOPPED, ended=(Ended(2, 1.5),))), 10.0)
    job.send(2, Phase.FAILED, a_failure(rank=1, error=LOST_PEER, age_s=0.5), now=10.0)
    assert (report := job.report(1)) is not None
    assert failure_status(report).left_early == "rank 2 on node a exited with 0 while rank 1 on node b still needed it"
    assert (report.node, report.cause) == ("b", Cause.USER_CODE)
    assert cause_in_brief(report) == "rank 2 on node a exited with 0 too early in round 1"


def test_what_a_node_said_of_another_round_is_no_early_end() -> None:
    job = Job()
    job.handle(Reported(1, an_observed(run="e-1", round=1, phase=Phase.RUNNING, ended=(Ended(2, 5.0),))), 1.0)
    job.fail(now=10.0)
    for session in (1, 2):
        job.send(session, Phase.RUNNING, number=2, now=11.0)
    job.send(2, Phase.FAILED, ERROR, number=2, now=12.0)
    job.send(1, Phase.STOPPED, number=2, now=12.0)
    assert (report := job.coordinator.jobs["default"].durable.report) is not None
    assert (report.round, report.early) == (2, ())


TIMEOUT = "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation"


@pytest.mark.parametrize(
    ("error", "said"), [(TIMEOUT, "rank 0 on a at step 4, while others had reported step 5"), ("ValueError", "")]
)
def test_where_a_worker_waited_in_vain_it_is_said_who_was_behind(error: str, said: str) -> None:
    job = Job()
    for session, phase, step in ((1, Phase.RUNNING, 4), (2, Phase.RUNNING, 5), (1, Phase.STOPPED, 4)):
        if phase is Phase.STOPPED:
            failed = an_observed(run="e-1", round=1, phase=Phase.FAILED, failure=a_failure(error=error), steps=(5,))
            job.handle(Reported(2, failed), 9.0)
        sent = an_observed(run="e-1", round=1, phase=phase, steps=(step,), step_age_s=0.1)
        job.handle(Reported(session, sent), 9.0)
    assert (report := job.report(1)) is not None
    assert (report.step, report.stragglers) == (5, (Straggler("a", 0, 4),))
    assert failure_status(report).behind == said


@pytest.mark.parametrize("session", [1, 2])
def test_a_coordinator_that_is_started_again_still_knows_it(session: int) -> None:
    job = Job(max_restarts=0)
    job.fail()
    successor = a_coordinator()
    successor.restore([(0.0, record) for record in job.records], 100.0)
    assert (shown := job_view(successor.jobs["default"], 101.0, None).failure) is not None
    assert shown.error == "ValueError: no"
    node = "ab"[session - 1]
    join = a_join(node, spec=a_spec(2, 2, 0), observed=an_observed(run="e-1", round=1, phase=Phase.FAILED))
    batch = successor.handle(Connected(9, join, "10.0.0.1", "10.0.0.9"), 101.0)
    (sent,) = [effect.message for effect in batch.effects if hasattr(effect, "message")]
    assert isinstance(sent, Desired)
    assert sent.goal is Goal.EXIT
    assert sent.report is not None
    assert sent.report.failure.error == "ValueError: no"


def test_workers_that_were_never_started_are_reported_as_that() -> None:
    job = Job(max_restarts=0)
    job.send(2, Phase.FAILED, a_failure(pid=0, exit_code=127, message="no such program"), now=10.0)
    job.send(1, Phase.STOPPED, now=10.0)
    assert (outcome := job.heard[1].outcome) is not None
    assert outcome.summary.startswith("node b could not start its workers: no such program")
