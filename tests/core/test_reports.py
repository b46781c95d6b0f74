"""The first cause of a failed round is told to every node that it concerns, and shown in the status."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from coordinatord.core.events import Connected, Disconnected, Reported
from coordinatord.core.machine import Coordinator
from coordinatord.core.records import RoundEnded, RunEnded
from coordinatord.core.view import job_view
from coordinatord.wire.messages import Consequence, Desired, Failure, Follower, Goal, Phase, Report
from tests.support.builders import a_coordinator, a_failure, a_join, a_spec, an_observed, let_pass

ERROR = a_failure(rank=1, exit_code=3, error="ValueError: no", last_lines=("Traceback", "ValueError: no"), age_s=0.5)


class Job:
    """Two nodes in their first round."""

    def __init__(self, max_restarts: int = 3) -> None:
        self.coordinator: Coordinator = a_coordinator()
        self.heard: dict[int, Desired] = {}
        self.records: list[Any] = []
        for session, node in ((1, "a"), (2, "b")):
            self.handle(Connected(session, a_join(node, spec=a_spec(2, 2, max_restarts)), "10.0.0.1", "10.0.0.9"))
        for session in (1, 2):
            self.say(session, Phase.RUNNING)

    def handle(self, event: Any, now: float = 0.0) -> None:
        """Let something happen, and note what is said and recorded."""
        batch = self.coordinator.handle(event, now)
        self.records += batch.records
        for effect in batch.effects:
            if hasattr(effect, "message"):
                self.heard[effect.session] = cast("Desired", effect.message)

    def say(
        self, session: int, phase: Phase, failure: Failure | None = None, number: int = 1, now: float = 0.0
    ) -> None:
        """Let a node say how its part of a round stands."""
        beat = an_observed(run="e-1", round=number, phase=phase, failure=failure, beat=True)
        self.handle(Reported(session, beat), now)

    def fail(self, consequence: Failure | None = None, now: float = 10.0) -> None:
        """Let a worker of node b fail, and perhaps one of node a after it; then all workers are dead."""
        self.say(2, Phase.FAILED, ERROR, now=now)
        self.say(1, Phase.FAILED if consequence else Phase.STOPPED, consequence, now=now)

    def report(self, session: int) -> Report | None:
        """Return the report that a node was told last."""
        return self.heard[session].report


def test_the_first_cause_is_told_to_every_node_with_its_next_round_until_its_workers_run() -> None:
    job = Job()
    job.fail()
    for session in (1, 2):
        assert job.heard[session].goal is Goal.RUN
        report = job.report(session)
        assert report is not None
        assert (report.round, report.nodes, report.node, report.host) == (1, 2, "b", "host-b")
        assert report.failure == ERROR
    job.say(1, Phase.STARTING, number=2, now=12.0)
    report = job.report(1)
    assert report is not None
    assert report.failure.age_s == 2.5
    job.say(1, Phase.RUNNING, number=2, now=13.0)
    assert job.report(1) is None


def test_a_run_that_ends_of_it_tells_the_first_cause_as_its_last_word() -> None:
    job = Job(max_restarts=0)
    job.fail()
    for session in (1, 2):
        assert job.heard[session].goal is Goal.EXIT
        assert job.report(session) is not None
    (end,) = [record for record in job.records if isinstance(record, RunEnded)]
    assert end.report == job.report(1)


def test_later_failures_on_other_nodes_are_its_consequences() -> None:
    job = Job()
    job.fail(a_failure(rank=0, exit_code=-6, age_s=0.25))
    report = job.report(1)
    assert report is not None
    assert report.consequences == (Consequence("a", 0, -6),)
    assert report.consequences_count == 1


def test_workers_of_its_own_node_that_failed_later_are_consequences_too_though_told_of_later() -> None:
    job = Job()
    job.say(2, Phase.STOPPING, ERROR, now=10.0)
    grown = dataclasses.replace(ERROR, followers=(Follower(2, 1), Follower(3, 7)))
    job.say(2, Phase.FAILED, grown, now=10.0)
    job.say(1, Phase.FAILED, a_failure(rank=0, age_s=0.25), now=10.0)
    report = job.report(1)
    assert report is not None
    assert report.consequences == (Consequence("b", 2, 1), Consequence("b", 3, 7), Consequence("a", 0, 1))
    assert (report.failure.rank, report.consequences_count) == (1, 3)


def test_a_round_that_ended_by_the_loss_of_a_node_has_no_report() -> None:
    job = Job()
    job.handle(Disconnected(2), 10.0)
    job.say(1, Phase.FAILED, a_failure(age_s=0.0), now=10.0)
    let_pass(job.coordinator, 12.0)
    job.say(1, Phase.FAILED, a_failure(age_s=2.0), now=12.0)
    ended = [record for record in job.records if isinstance(record, RoundEnded)]
    assert [record.report for record in ended] == [None] * len(ended)
    assert job.report(1) is None


def test_the_status_shows_the_last_failure_with_its_age() -> None:
    job = Job()
    assert job_view(job.coordinator.jobs["default"], 1.0, None)["failure"] is None
    job.fail(a_failure(rank=0, exit_code=-6))
    shown = job_view(job.coordinator.jobs["default"], 20.0, None)["failure"]
    assert shown == {
        "round": 1,
        "nodes": 2,
        "node": "b",
        "host": "host-b",
        "rank": 1,
        "local_rank": 0,
        "pid": 4_711,
        "exit_code": 3,
        "how": "exit code 3",
        "message": "",
        "error": "ValueError: no",
        "last_lines": ["Traceback", "ValueError: no"],
        "age_s": 10.5,
        "consequences": [{"node": "a", "rank": 0, "exit_code": 134, "how": "killed by SIGABRT"}],
        "consequences_count": 1,
    }


@pytest.mark.parametrize("session", [1, 2])
def test_a_coordinator_that_is_started_again_still_knows_it(session: int) -> None:
    job = Job(max_restarts=0)
    job.fail()
    successor = a_coordinator()
    successor.restore([(0.0, record) for record in job.records], 100.0)
    assert job_view(successor.jobs["default"], 101.0, None)["failure"]["error"] == "ValueError: no"
    node = "ab"[session - 1]
    join = a_join(node, spec=a_spec(2, 2, 0), observed=an_observed(run="e-1", round=1, phase=Phase.FAILED))
    batch = successor.handle(Connected(9, join, "10.0.0.1", "10.0.0.9"), 101.0)
    (told,) = [effect.message for effect in batch.effects if hasattr(effect, "message")]
    assert isinstance(told, Desired)
    assert told.goal is Goal.EXIT
    assert told.report is not None
    assert told.report.failure.error == "ValueError: no"


def test_workers_that_were_never_started_are_told_of_as_that() -> None:
    job = Job(max_restarts=0)
    job.say(2, Phase.FAILED, a_failure(pid=0, exit_code=127, message="no such program"), now=10.0)
    job.say(1, Phase.STOPPED, now=10.0)
    outcome = job.heard[1].outcome
    assert outcome is not None
    assert outcome.summary.startswith("node b could not start its workers: no such program")
