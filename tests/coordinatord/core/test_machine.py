"""What the coordinator must get right in corners that a transcript does not show."""

from typing import Any

import pytest

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Batch, Close, Refuse, Send
from coordinatord.core.rounds.events import AdminRequested, Connected, Disconnected, Event, Reported, Tick
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.admin_requests import StopJob
from coordinatord.core.rounds.values.records import NodeLost, NodeReleased, RoundEnded, RoundFormed, RunEnded
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.messages import Goal, Join, Observed, Phase, RefusalCode
from tests.support.builders import a_coordinator, a_failure, a_join, a_spec, an_observed, an_offer, let_pass
from tests.support.ledgers import play


def connect(coordinator: Coordinator, session: int, join: Join, now: float = 0.0) -> Batch:
    return coordinator.handle(Connected(session, join, f"10.0.0.{session}", "10.0.0.254"), now)


def report(coordinator: Coordinator, session: int, now: float = 0.0, **values: object) -> Batch:
    return coordinator.handle(Reported(session, an_observed(run="e-1", round=1, **values)), now)


def running_pair(coordinator: Coordinator, **spec: int) -> None:
    """Bring two nodes, n1 and n2 in the sessions 1 and 2, into a running round."""
    for session in (1, 2):
        connect(coordinator, session, a_join(f"n{session}", spec=a_spec(**({"nodes_min": 2, "nodes_max": 2} | spec))))
    for session in (1, 2):
        report(coordinator, session, phase=Phase.RUNNING)
    assert coordinator.jobs["default"].durable.state is State.RUNNING


def test_the_end_of_an_old_run_s_session_does_not_disturb_the_job_s_next_run() -> None:
    coordinator = a_coordinator(settle_s=2.0)
    running_pair(coordinator)
    for session in (1, 2):
        report(coordinator, session, phase=Phase.SUCCEEDED)
    connect(coordinator, 3, a_join("n3", spec=a_spec(1, 2)), now=1.0)
    coordinator.handle(Disconnected(1), 1.5)
    assert let_pass(coordinator, 2.9) == []
    assert [type(record) for record in let_pass(coordinator, 3.0)] == [RoundFormed]


def test_who_left_after_success_and_is_gone_does_not_disturb_the_next_round() -> None:
    stage = play("""
        join n1 min=1 max=3
        join n2 min=1 max=3
        join n3 min=1 max=3
        running n1 n2 n3
        succeed n1
        leave n1
        drop n1
        fail n2
        failed n2
        stopped n3
        running n2 n3
        advance 30s
    """)
    run = stage.coordinator.jobs["default"]
    assert (run.durable.state, list(run.durable.order), run.durable.restarts_used) == (State.RUNNING, ["n2", "n3"], 1)
    assert list(run.members) == ["n2", "n3"]


def test_who_left_and_fell_silent_with_its_connection_open_may_close_it_at_any_time() -> None:
    stage = play("""
        join n1 min=1 max=3
        join n2 min=1 max=3
        join n3 min=1 max=3
        running n1 n2 n3
        leave n1
        stopped n1
        silence n1
        advance 6s
        stopped n2 n3
        drop n1
    """)
    run = stage.coordinator.jobs["default"]
    assert list(run.durable.order) == ["n2", "n3"]
    assert list(run.members) == ["n2", "n3"]


def test_a_node_goes_once_in_the_history_however_it_goes() -> None:
    coordinator = a_coordinator()
    running_pair(coordinator, nodes_min=1)
    gone = []
    events: list[tuple[Event, float]] = [
        (Reported(1, an_observed(run="e-1", round=1, phase=Phase.SUCCEEDED, leaving=True)), 1.0),
        (Disconnected(1), 1.1),
        *((Tick(), quarter / 4) for quarter in range(5, 13)),
        (Reported(2, an_observed(run="e-1", round=1, phase=Phase.STOPPING, failure=a_failure())), 3.0),
        (Reported(2, an_observed(run="e-1", round=1, phase=Phase.FAILED, failure=a_failure())), 3.1),
    ]
    for event, now in events:
        gone += [
            record for record in coordinator.handle(event, now).records if isinstance(record, NodeLost | NodeReleased)
        ]
    assert [(record.node, record.reason) for record in gone] == [("n1", "left the job, as asked")]
    assert list(coordinator.jobs["default"].members) == ["n2"]


def test_a_node_that_was_released_may_send_heartbeats_until_its_round_ends() -> None:
    stage = play("""
        join n1 min=1 max=2
        join n2 min=1 max=2
        running n1 n2
        leave n1
        stopped n1
        advance 2s
        stopped n2
    """)
    assert [record.node for _, record in stage.past if isinstance(record, NodeReleased)] == ["n1"]


def test_a_heartbeat_of_a_node_that_left_after_success_does_not_stop_the_others() -> None:
    stage = play("""
        join n1 min=1 max=2
        join n2 min=1 max=2
        running n1 n2
        succeed n1
        leave n1
        advance 2s
        succeed n2
    """)
    assert stage.coordinator.jobs["default"].durable.state is State.SUCCEEDED


def test_a_released_node_that_is_left_behind_is_released_from_its_round() -> None:
    stage = play("""
        join n1 min=1 max=2
        join n2 min=1 max=2
        running n1 n2
        leave n1
        stopped n1
        running n1
        advance 100s
    """)
    run = stage.coordinator.jobs["default"].durable
    assert (list(run.members), list(run.released)) == (["n2"], ["n1"])


def test_a_silent_node_that_was_released_is_forgotten_without_another_word() -> None:
    coordinator = a_coordinator()
    connect(coordinator, 1, a_join("n1", spec=a_spec(2, 2), offer=an_offer("n1", join_timeout_s=1)))
    connect(coordinator, 2, a_join("n2", spec=a_spec(3, 3)))  # refused, so not a member
    assert [type(record) for record in coordinator.handle(Tick(), 1.0).records] == [NodeReleased, RunEnded]
    assert let_pass(coordinator, 4.9) == []
    assert coordinator.handle(Tick(), 5.0) == Batch((), (Close(1),))


def test_a_reconnected_nodeclient_has_its_old_session_closed_and_is_not_accused() -> None:
    coordinator = a_coordinator()
    running_pair(coordinator)
    observed = an_observed(run="e-1", round=1, phase=Phase.RUNNING)
    batch = connect(coordinator, 3, a_join("n2", spec=a_spec(2, 2), observed=observed), now=1.0)
    assert batch.records == ()
    close, send = batch.effects
    assert close == Close(2)
    assert isinstance(send, Send)
    assert (send.session, send.message.goal) == (3, Goal.RUN)
    assert coordinator.handle(Disconnected(2), 1.1) == Batch((), ())
    assert coordinator.sessions == 2


def test_a_straggler_is_sent_why_it_is_to_stop() -> None:
    coordinator = a_coordinator()
    running_pair(coordinator)
    straggler = an_observed(run="e-0", round=7, phase=Phase.RUNNING)
    batch = connect(coordinator, 3, a_join("n3", spec=a_spec(2, 2), observed=straggler))
    (send,) = batch.effects
    assert isinstance(send, Send)
    assert (send.message.goal, send.message.reason) == (
        Goal.STOP,
        "its workers are of a run that this coordinator does not know, or not any more: was its state lost?",
    )


@pytest.mark.parametrize("has_run", [False, True])
def test_a_node_that_awaits_its_own_coordinator_is_refused_where_its_run_is_not_known(has_run: bool) -> None:
    coordinator = a_coordinator()
    if has_run:
        running_pair(coordinator)
    observed = an_observed(run="other-1", round=7, phase=Phase.RUNNING)
    batch = connect(coordinator, 3, a_join("n1", spec=a_spec(2, 2), observed=observed, awaits_own=True))
    (refuse,) = batch.effects
    assert isinstance(refuse, Refuse)
    assert (refuse.message.code, refuse.message.retry) == (RefusalCode.FORGOTTEN, True)
    assert refuse.message.message == (
        "this coordinator does not know run other-1 of job default: it is another one, or has lost its state"
    )
    assert not batch.records


def test_a_node_of_an_earlier_run_of_the_job_is_told_to_end_its_workers() -> None:
    coordinator = a_coordinator()
    running_pair(coordinator)
    coordinator.handle(AdminRequested(-1, StopJob("default", "alice", "")), 1.0)
    for session in (1, 2):
        report(coordinator, session, 1.0, phase=Phase.STOPPED)
    connect(coordinator, 3, a_join("n3", spec=a_spec(2, 2)), 2.0)
    observed = an_observed(run="e-1", round=1, phase=Phase.RUNNING)
    (send,) = connect(coordinator, 4, a_join("n1", spec=a_spec(2, 2), observed=observed, awaits_own=True), 3.0).effects
    assert isinstance(send, Send)
    assert (send.message.run, send.message.goal) == ("e-2", Goal.STOP)


def test_a_node_that_gives_up_its_own_coordinator_is_told_that_the_job_begins_anew() -> None:
    coordinator = a_coordinator()
    stopped = an_observed(run="other-1", round=7, phase=Phase.STOPPED)
    (send,) = connect(coordinator, 1, a_join("n1", observed=stopped)).effects
    assert isinstance(send, Send)
    assert send.message.remark == (
        "this coordinator does not know run other-1, in which this node was: the job begins anew"
    )


def test_the_oldest_ended_job_is_forgotten_for_a_new_one_and_live_ones_never() -> None:
    coordinator = a_coordinator(jobs_max=2)
    for session, job in enumerate(("first", "second"), start=1):
        connect(coordinator, session, a_join("n1", job=job, spec=a_spec(1, 1)))
    (refuse,) = connect(coordinator, 3, a_join("n1", job="third")).effects
    assert isinstance(refuse, Refuse)
    assert refuse.message.message == "this coordinator already has 2 live jobs, its limit"
    coordinator.handle(Reported(1, an_observed(run="e-1", round=1, phase=Phase.SUCCEEDED)), 1.0)
    connect(coordinator, 4, a_join("n1", job="third"), now=2.0)
    assert list(coordinator.jobs) == ["second", "third"]
    coordinator.handle(Disconnected(1), 3.0)


def test_what_comes_from_a_refused_session_is_ignored() -> None:
    coordinator = a_coordinator()
    connect(coordinator, 1, a_join("n1", spec=a_spec(2, 2)))
    connect(coordinator, 2, a_join("n2", spec=a_spec(3, 3)))
    assert coordinator.handle(Reported(2, an_observed()), 1.0) == Batch((), ())
    assert coordinator.handle(Disconnected(2), 1.0) == Batch((), ())


def test_a_round_s_failures_are_forgotten_with_it() -> None:
    coordinator = a_coordinator()
    running_pair(coordinator)
    report(coordinator, 1, 1.0, phase=Phase.FAILED, failure=a_failure())
    (ended, *_) = report(coordinator, 2, 1.0, phase=Phase.STOPPED).records
    assert isinstance(ended, RoundEnded)
    assert ended.charged
    again = Observed("e-1", 1, Phase.FAILED, 40_001, leaving=False, failure=a_failure(), heard_s=0.0, beat=True)
    assert coordinator.handle(Reported(1, again), 2.0).records == ()
    assert coordinator.jobs["default"].durable.state is State.STARTING


@pytest.mark.parametrize("claimed", [2**30 + 1, 2**31 - 1])
def test_a_node_that_remembers_too_much_does_not_use_up_all_numbers_of_rounds(claimed: int) -> None:
    coordinator = a_coordinator()
    connect(coordinator, 1, a_join("n1", spec=a_spec(1, 1), observed=an_observed(run="other", round=claimed)))
    run = coordinator.jobs["default"]
    assert run.durable.round == 2**30 + 1
    coordinator.handle(Reported(1, an_observed(run=run.id, round=claimed, phase=Phase.RUNNING)), 1.0)
    assert run.durable.round == 2**30 + 1


def test_a_run_that_has_ended_shows_its_nodes_by_group_rank() -> None:
    stage = play("""
        join n1 min=2 max=2 host=b
        join n2 min=2 max=2 host=a
        running n1 n2
        succeed n1 n2
    """)
    view = job_view(stage.coordinator.jobs["default"], stage.now, None)
    assert [(node.node, node.group_rank) for node in view.nodes] == [("n2", 0), ("n1", 1)]


def test_a_run_that_has_ended_keeps_no_evidence() -> None:
    stage = play("""
        join n1 min=2 max=2 restarts=0
        join n2 min=2 max=2 restarts=0
        running n1 n2
        fail n1 n2
        stopped n1 n2
        fail n1
    """)
    run = stage.coordinator.jobs["default"]
    assert (run.durable.state, run.evidence.failures) == (State.FAILED, {})


@pytest.mark.parametrize(
    "wrong",
    [{"heartbeats_per_lease": 2.0}, {"reconnect_grace_s": 6.0}, {"settle_s": 11.0}, {"stop_limit_s": 15.0}],
    ids=str,
)
def test_a_policy_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Policy(**wrong)


def test_heartbeats_are_stretched_with_the_number_of_nodes() -> None:
    policy = Policy(heartbeat_s=1.0, heartbeats_per_s_max=4_000)
    sizes = (1, 4_000, 4_001, 5_000, 5_001, 10_000)
    assert [policy.heartbeat_for(nodes) for nodes in sizes] == [1.0, 1.0, 1.25, 1.25, 1.5, 2.5]
    assert Policy(heartbeat_s=0.1, reconnect_grace_s=0.5).heartbeat_for(100) == 0.1
