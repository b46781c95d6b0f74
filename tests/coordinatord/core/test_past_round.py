"""The round that is over: the root cause reaches every node that it concerns, and a node is proved to be gone."""

import pytest
from msgspec import structs
from msgspec.structs import replace

from coordinatord.core.rounds.events import Disconnected, TokensRevoked
from coordinatord.core.rounds.queries.reasons import situation
from coordinatord.core.rounds.values.records import NodeLost, RoundEnded, RoundFormed
from coordinatord.hints.brief_cause import cause_in_brief
from coordinatord.hints.failure_status import failure_status
from coordinatord.protocol.messages import (
    Cause,
    EarlyEnd,
    Ended,
    Failure,
    Follower,
    Goal,
    LastOutput,
    Phase,
    Report,
    SecondaryFailure,
    Straggler,
)
from tests.support.builders import LOST_PEER, a_failure, a_report
from tests.support.script import Stage, play

ERROR = a_failure(
    rank=1,
    exit_code=3,
    error="ValueError: no",
    last_lines=("Traceback", "ValueError: no"),
    age_s=0.5,
    log="/logs/stderr.log",
)

TIMEOUT = "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation"


class Job(Stage):
    """Two nodes in their first round."""

    def __init__(self, restarts: int = 3) -> None:
        super().__init__()
        self.play(f"join a b min=2 max=2 restarts={restarts}", "running a b", "advance 10s")

    def fail(self, consequence: Failure | None = None) -> None:
        """Let a worker of node b fail, and perhaps one of node a after it; then all workers are dead."""
        self.report("b", phase=Phase.FAILED, failure=ERROR)
        self.report("a", phase=Phase.FAILED if consequence else Phase.STOPPED, failure=consequence)

    def received(self, node: str = "a") -> Report:
        """Return the report that a node received last."""
        report = self.desired(node).report
        assert report is not None
        return report


def test_the_root_cause_is_sent_to_every_node_with_its_next_round_until_its_workers_run() -> None:
    job = Job()
    job.fail()
    for node in ("a", "b"):
        assert job.desired(node).goal is Goal.RUN
        report = job.received(node)
        assert (report.round, report.nodes, report.node, report.host) == (1, 2, "b", "host-b")
        assert report.failure == ERROR
    job.play("advance 2s")
    job.report("a", phase=Phase.STARTING)
    assert job.received().failure.age_s == 2.5
    job.play("running a", "advance 1s")
    assert job.desired("a").report is None


def test_an_error_of_the_script_beside_a_lost_node_is_shown_and_costs_no_restart() -> None:
    job = Job()
    job.report("b", phase=Phase.FAILED, failure=structs.replace(ERROR, error="ValueError: no labels"))
    job.play("silence a", "advance 30s", "join c min=2 max=2")
    [ended] = job.records(RoundEnded)
    assert not ended.charged
    assert ended.report is None
    assert job.desired("b").goal is Goal.RUN
    report = job.received("b")
    assert (report.node, report.failure.error) == ("b", "ValueError: no labels")
    assert report.excused_by == "a"
    failure = job.view().failure
    assert failure is not None
    assert failure.excused_by == "a"
    assert "rank 1 on node b failed: exit code 3: ValueError: no labels" in ended.reason


def test_workers_of_its_own_node_that_failed_later_are_consequences_too_though_reported_later() -> None:
    job = Job()
    job.report("b", phase=Phase.STOPPING, failure=ERROR)
    grown = structs.replace(ERROR, followers=(Follower(2, 1), Follower(3, 7)))
    job.report("b", phase=Phase.FAILED, failure=grown)
    job.report("a", phase=Phase.FAILED, failure=a_failure(rank=0, age_s=0.25))
    report = job.received()
    assert report.consequences == (
        SecondaryFailure("b", 2, 1),
        SecondaryFailure("b", 3, 7),
        SecondaryFailure("a", 0, 1),
    )
    assert (report.failure.rank, report.consequences_count) == (1, 3)


@pytest.mark.parametrize(
    ("left", "did", "how"),
    [(True, "left the round", "left its round"), (False, "failed or left the round", "exit code 1")],
)
def test_a_worker_that_has_left_its_round_is_not_said_to_have_failed(left: bool, did: str, how: str) -> None:
    job = Job()
    job.fail(a_failure(rank=0, left=True, followers=(Follower(2, 1, left=left),)))
    then = f"2 other workers {did} in consequence: rank 0 on a (left its round), rank 2 on a ({how})"
    assert failure_status(job.received()).then == then


def test_who_failed_with_the_same_error_did_not_do_so_in_consequence() -> None:
    job = Job()
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"
    here = structs.replace(ERROR, error=missing, followers=(Follower(2, 1, same_error=True), Follower(3, -6)))
    job.report("b", phase=Phase.FAILED, failure=here)
    there = a_failure(rank=0, error=missing, age_s=0.25, followers=(Follower(4, 1, same_error=True), Follower(5, -6)))
    job.report("a", phase=Phase.FAILED, failure=there)
    report = job.received()
    assert [(consequence.rank, consequence.same_error) for consequence in report.consequences] == [
        (2, True),
        (3, False),
        (0, True),
        (4, True),
        (5, False),
    ]
    assert (report.consequences_count, report.same_error_count) == (5, 3)
    assert failure_status(report).then == (
        "5 other workers failed, 3 of them with the same error: rank 2 on b, rank 0 on a, rank 4 on a; "
        "and in consequence: rank 3 on b (killed by SIGABRT), rank 5 on a (killed by SIGABRT)"
    )


def test_a_bug_of_all_workers_is_told_as_one_though_all_but_the_first_were_stopped_before_they_had_exited() -> None:
    job, bug = Job(), "NameError: name 'lr' is not defined"
    here = a_failure(rank=0, error=bug, last_lines=("Traceback", bug), age_s=0.5)
    job.report("a", phase=Phase.FAILED, failure=here)
    there = a_failure(rank=1, error=bug, exit_code=-15, stopped=True, age_s=0.25)
    job.report("b", phase=Phase.STOPPED, failure=there)
    report = job.received()
    assert (report.failure, report.workers) == (here, 2)
    assert report.consequences == (SecondaryFailure("b", 1, -15, same_error=True),)
    shown = failure_status(report)
    assert (shown.shared_by, shown.then, cause_in_brief(report)) == ("all 2 ranks", "", "all 2 ranks failed in round 1")
    [ended] = job.records(RoundEnded)
    assert ended.reason == f"all 2 ranks failed with the same error: {bug}"
    assert job.run.durable.restarts_used == 1


def test_workers_that_all_lost_a_connection_are_named_although_none_is_the_cause() -> None:
    others = (SecondaryFailure("b", 1, 1, same_error=True),)
    lost = a_failure(rank=0, error=LOST_PEER, last_lines=(LOST_PEER,))
    report = a_report(failure=lost, consequences=others, consequences_count=1, same_error_count=1, workers=2)
    shown = failure_status(report)
    assert (shown.shared_by, shown.then) == ("", "another worker failed with the same error: rank 1 on b")


def test_another_exception_of_a_worker_that_was_stopped_is_no_failure() -> None:
    job = Job()
    job.report("b", phase=Phase.FAILED, failure=ERROR)
    job.report("a", phase=Phase.STOPPED, failure=a_failure(rank=0, error="OSError: a signal", stopped=True, age_s=9.0))
    report = job.received()
    assert (report.failure, report.consequences_count, failure_status(report).shared_by) == (ERROR, 0, "")


def test_what_a_node_reported_of_workers_that_it_stopped_does_not_count_beside_its_failure() -> None:
    job, stopped = Job(), a_failure(rank=0, error="OSError: a signal", exit_code=-15, stopped=True)
    job.report("a", phase=Phase.FAILED, failure=ERROR)
    job.report("b", phase=Phase.STOPPING, failure=stopped)
    job.report("b", phase=Phase.STOPPED, failure=structs.replace(ERROR, rank=3, age_s=9.0))
    report = job.received()
    assert (report.node, report.consequences_count, report.same_error_count) == ("b", 1, 1)


def test_another_error_on_another_node_makes_no_follower_there_the_same() -> None:
    job = Job()
    job.fail(a_failure(rank=0, error="OSError: no", age_s=0.25, followers=(Follower(4, 1, same_error=True),)))
    report = job.received()
    assert (report.consequences_count, report.same_error_count) == (2, 0)


def test_workers_that_had_ended_with_0_are_named_with_how_long_before_that_was() -> None:
    job = Job()
    ended = (Ended(2, 1.5), Ended(3, 0.25))
    job.report("a", phase=Phase.STOPPED, ended=ended)
    job.report("b", phase=Phase.FAILED, failure=ERROR)
    report = job.received()
    assert report.early == (EarlyEnd("a", 2, 1.0),)  # the other one ended after it
    assert failure_status(report).before == "rank 2 on a had ended with 0, 1.0 s before"


def test_who_left_early_is_the_root_cause_of_a_lost_connection() -> None:
    job = Job()
    said = LastOutput(("no data is left",), "/logs/2/stderr.log")
    job.report("a", phase=Phase.STOPPED, ended=(Ended(2, 1.5, said),))
    job.report("b", phase=Phase.FAILED, failure=a_failure(rank=1, error=LOST_PEER, age_s=0.5))
    report = job.received()
    assert (report.early, report.early_output) == ((EarlyEnd("a", 2, 1.0),), said)
    assert failure_status(report).left_early == "rank 2 on node a exited with 0 while rank 1 on node b still needed it"
    assert (report.node, report.cause) == ("b", Cause.USER_CODE)
    assert cause_in_brief(report) == "rank 2 on node a exited with 0 too early in round 1"


def test_a_heartbeat_after_a_worker_has_left_early_moves_its_exit_to_no_later_time() -> None:
    job = Job()
    job.report("a", phase=Phase.SUCCEEDED, ended=(Ended(2, 0.0),))
    job.now += 5.0
    job.report("a", beat=True, ended=(Ended(2, 5.0),))
    job.report("b", phase=Phase.FAILED, failure=a_failure(rank=1, error=TIMEOUT, age_s=0.5))
    assert (report := job.run.durable.report) is not None
    assert report.early == (EarlyEnd("a", 2, 4.5),)


def test_what_a_node_said_of_another_round_is_no_early_end() -> None:
    job = Job()
    job.report("a", ended=(Ended(2, 5.0),))
    job.fail()
    job.report("a", phase=Phase.RUNNING, ended=())
    job.play("running b", "advance 2s")
    job.fail()
    assert (report := job.run.durable.report) is not None
    assert (report.round, report.early) == (2, ())


@pytest.mark.parametrize(
    ("error", "said"), [(TIMEOUT, "rank 0 on a at step 4, while others had reported step 5"), ("ValueError", "")]
)
def test_where_a_worker_waited_in_vain_it_is_said_who_was_behind(error: str, said: str) -> None:
    job = Job()
    job.play("step a 4", "step b 5")
    job.report("b", phase=Phase.FAILED, failure=a_failure(error=error))
    job.play("stopped a")
    report = job.received()
    assert (report.step, report.stragglers) == (5, (Straggler("a", 0, 4),))
    assert failure_status(report).behind == said


def test_workers_that_were_never_started_are_reported_as_that() -> None:
    job = Job(restarts=0)
    job.report("b", phase=Phase.FAILED, failure=a_failure(pid=0, exit_code=127, message="no such program"))
    job.play("stopped a")
    assert (outcome := job.desired("a").outcome) is not None
    assert outcome.summary.startswith("node b could not start its workers: no such program")


# A node that is proved to be gone


TRIO = """
    join n1 min=2 max=3 workers=2
    join n2 n3 min=2 max=3
    advance 1s
    running n1 n2 n3
    advance 20s
"""

KILLED = """
    drop n3
    fail n1 of=peer
    stopped n2
    failed n1
"""
"""Node n3 is killed: its session closes, a worker of n1 fails for that, and that of n2 hangs until it is stopped."""


def losses(stage: Stage) -> list[tuple[str, float]]:
    """Return who was lost, and how long after its session had closed."""
    return [(record.node, record.silent_s) for record in stage.records(NodeLost)]


def revoke(stage: Stage, *nodes: str) -> None:
    """Revoke the token of these nodes, whose sessions end then."""
    for node in nodes:
        stage.run.members[node].session.token = node
    stage.coordinator.handle(TokensRevoked(frozenset(nodes)), stage.now)
    for node in nodes:
        stage.coordinator.handle(Disconnected(stage.puppets[node].session), stage.now)


def test_the_failure_of_a_peer_may_be_known_before_the_end_of_the_session() -> None:
    stage = play(TRIO, "fail n1 of=peer", "stopped n2", "failed n1")
    assert losses(stage) == []
    stage.play("drop n3")
    assert losses(stage) == [("n3", 0.0)]


def test_workers_of_one_node_may_have_lost_the_same_peer() -> None:
    stage = play(TRIO, "drop n3", "fail n1 of=peer follower=same", "stopped n2", "failed n1")
    assert losses(stage) == [("n3", 0.0)]


ALONE = {
    "only its session closed": ["drop n3"],
    "only a peer's worker failed": ["fail n1 of=peer", "stopped n2", "failed n1"],
    "a peer's worker failed by itself": ["drop n3", "fail n1", "stopped n2", "failed n1"],
    "one of two failed by itself": ["drop n3", "fail n1 of=peer", "fail n2", "failed n1 n2"],
    "another worker of that node failed by itself": [
        "drop n3",
        "fail n1 of=peer follower=other",
        "stopped n2",
        "failed n1",
    ],
    "it had said that its own worker failed": ["fail n3 of=peer", "drop n3", "stopped n1 n2"],
    "both had said so": ["fail n1 of=peer", "fail n3 of=peer", "drop n3", "stopped n2", "failed n1"],
    "it had said that it ends its workers": ["fail n1 of=peer", "stopping n3", "drop n3", "stopped n2", "failed n1"],
    "another node may still have workers": ["drop n3", "fail n1 of=peer", "failed n1"],
    "two sessions closed": ["drop n2", "drop n3", "fail n1 of=peer", "failed n1"],
    "the round was stopped on purpose before": ["ask restart default", "drop n3", "fail n1 of=peer", "stopped n1 n2"],
    "the failure was long before": ["fail n1 of=peer", "stopped n2", "advance 2s", "failed n1", "drop n3"],
    "a peer is to leave": ["leave n2", "drop n3", "fail n1 of=peer age=1s", "stopped n2", "failed n1"],
    "a peer came back only after the failure": [
        "drop n3 n2",
        "fail n1 of=peer",
        "advance 0.1s",
        "reconnect n2",
        "stopped n2",
        "failed n1",
    ],
    "a peer has been late": [
        "silence n2",
        "advance 4s",
        "heal n2",
        "drop n3",
        "fail n1 of=peer",
        "stopped n2",
        "failed n1",
    ],
    "its own network is bad": ["silence n3", "advance 4s", "heal n3", *KILLED.strip().splitlines()],
}


@pytest.mark.parametrize("signs", ALONE.values(), ids=ALONE)
def test_less_than_that_is_no_proof(signs: list[str]) -> None:
    stage = play(TRIO, *signs)
    assert losses(stage) == []
    stage.play("advance 0.8s")
    assert losses(stage) == []


def test_a_failure_in_an_older_round_is_no_proof() -> None:
    stage = play(TRIO, "fail n1 of=peer", "stopped n2 n3", "failed n1")
    assert len(stage.records(RoundFormed)) == 2
    stage.play("running n2 n3", "drop n3", "fail n2", "failed n2", "stopped n1")
    assert losses(stage) == []


@pytest.mark.parametrize(("node", "rank"), [("n2", 2), ("n3", 4)], ids=["a peer", "the suspect"])
def test_a_worker_of_another_node_that_had_exited_well_explains_the_failure(node: str, rank: int) -> None:
    stage = play(TRIO)
    stage.puppets[node].observed = replace(stage.puppets[node].observed, ended=(Ended(rank, 0.0),))
    stage.play("advance 2s", *KILLED.strip().splitlines())  # only a heartbeat says so
    assert losses(stage) == []


def test_a_revoked_token_closes_the_session_of_a_node_that_is_well() -> None:
    stage = play(TRIO)
    revoke(stage, "n3")
    stage.play("fail n1 of=peer", "stopped n2", "failed n1")
    assert losses(stage) == []


def test_nodes_that_are_silent_as_their_tokens_were_revoked_are_said_to_be() -> None:
    stage = play(TRIO)
    revoke(stage, *stage.puppets)
    stage.play("advance 10s")
    assert "their access tokens are no longer valid, so give them others" in situation(stage.run, stage.now)
    stage.play("reconnect n1")
    assert "silent" not in situation(stage.run, stage.now)


def test_a_node_that_is_lost_as_its_token_was_revoked_is_said_to_be() -> None:
    stage = play(TRIO)
    revoke(stage, "n3")
    stage.play("advance 10s")
    assert [lost.reason for lost in stage.records(NodeLost)] == ["its access token is no longer valid"]


def test_a_coordinator_that_was_started_again_has_seen_no_session_close() -> None:
    stage = play(TRIO, "fail n1 of=peer", "die 1s", "reconnect n1 n2", "stopped n2", "failed n1")
    assert losses(stage) == []
    stage.play("advance 5s")
    assert losses(stage) == []
