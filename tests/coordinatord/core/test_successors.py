"""Which nodes may take over a job's name, and when a run is over because nobody is left."""

from typing import Any

import pytest
from msgspec import structs

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Batch, Refuse, Send
from coordinatord.core.rounds.events import AdminRequested, Connected, Disconnected, Reported, Tick
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.admin_requests import StopJob
from coordinatord.core.rounds.values.records import NodeJoined, RunEnded, RunOpened
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import RANKS_MAX, WORKERS_MAX
from coordinatord.protocol.messages import Goal, JobSpec, Outcome, Phase, RefusalCode, Result
from tests.support.builders import a_coordinator, a_join, a_spec, an_observed, an_offer, let_pass

OURS = a_spec(2, 2)
OTHER = a_spec(1, 8, max_restarts=0)


def connect(coordinator: Coordinator, session: int, node: str, spec: JobSpec, now: float, **join: Any) -> Batch:
    event = Connected(session, a_join(node, spec=spec, **join), f"10.0.0.{session}", "10.0.0.254")
    return coordinator.handle(event, now)


def running_pair() -> tuple[Coordinator, Run]:
    """Bring two nodes, n1 and n2 in the sessions 1 and 2, into a running round."""
    coordinator = a_coordinator(reconnect_grace_s=1.0)
    for session in (1, 2):
        connect(coordinator, session, f"n{session}", OURS, 0.0)
    for session in (1, 2):
        coordinator.handle(Reported(session, an_observed(run="e-1", round=1, phase=Phase.RUNNING)), 0.0)
    run = coordinator.jobs["default"]
    assert run.durable.state is State.RUNNING
    return coordinator, run


def refusal(batch: Batch) -> RefusalCode:
    """Return the code of the refusal that is the only effect."""
    (refuse,) = batch.effects
    assert isinstance(refuse, Refuse)
    return refuse.message.code


def test_a_join_of_a_spare_that_was_on_its_way_beyond_the_end_of_the_job_begins_nothing() -> None:
    coordinator, _ = running_pair()
    connect(coordinator, 3, "n3", OURS, 1.0, age_s=1.0)
    for session in (1, 2):
        done = an_observed(run="e-1", round=1, phase=Phase.SUCCEEDED)
        coordinator.handle(Reported(session, done), 9.0)
    batch = connect(coordinator, 4, "n3", OURS, 11.0, age_s=1.5)
    assert batch.records == ()
    assert [effect.message.goal for effect in batch.effects if isinstance(effect, Send)] == [Goal.EXIT]


# Other settings


def test_in_a_blip_of_all_connections_a_node_with_other_settings_is_refused_and_the_run_goes_on() -> None:
    coordinator, run = running_pair()
    for session in (1, 2):
        coordinator.handle(Disconnected(session), 1.0)
    assert refusal(connect(coordinator, 3, "n3", OTHER, 1.9)) is RefusalCode.SPEC_DIFFERS
    observed = an_observed(run="e-1", round=1, phase=Phase.RUNNING)
    for session, node in ((4, "n1"), (5, "n2")):
        batch = connect(coordinator, session, node, OURS, 1.95, observed=observed)
        assert batch.records == ()
        assert [effect.message.goal for effect in batch.effects if isinstance(effect, Send)] == [Goal.RUN]
    coordinator.handle(Tick(), 3.0)
    assert (coordinator.jobs["default"], run.durable.state, run.durable.round) == (run, State.RUNNING, 1)


def test_a_run_whose_nodes_are_all_gone_gives_way_to_a_node_with_other_settings() -> None:
    coordinator, run = running_pair()
    for session in (1, 2):
        coordinator.handle(Disconnected(session), 1.0)
    let_pass(coordinator, 2.0)
    assert run.durable.state is State.RUNNING, "the outage grace is not over"
    batch = connect(coordinator, 3, "n3", OTHER, 2.5)
    assert [type(record) for record in batch.records] == [RunEnded, RunOpened, NodeJoined]
    assert (run.durable.state, run.members) == (State.FAILED, {})
    successor = coordinator.jobs["default"]
    assert (successor.spec, list(successor.members)) == (OTHER, ["n3"])
    assert list(coordinator.registry.live) == [successor.id], "nothing is kept of the old run"
    assert coordinator.handle(Tick(), 2.6).records == ()


def test_one_of_the_gone_nodes_may_itself_come_back_with_other_settings() -> None:
    coordinator, run = running_pair()
    for session in (1, 2):
        coordinator.handle(Disconnected(session), 1.0)
    let_pass(coordinator, 2.0)
    connect(coordinator, 3, "n1", OTHER, 2.5, incarnation=2)
    assert run.members == {}
    assert list(coordinator.jobs["default"].members) == ["n1"]


def test_a_gone_node_with_the_old_settings_goes_on_where_it_was() -> None:
    coordinator, run = running_pair()
    for session in (1, 2):
        coordinator.handle(Disconnected(session), 1.0)
    let_pass(coordinator, 2.0)
    observed = an_observed(run="e-1", round=1, phase=Phase.RUNNING)
    batch = connect(coordinator, 3, "n1", OURS, 2.5, observed=observed)
    assert coordinator.jobs["default"] is run
    assert not any(isinstance(record, RunEnded) for record in batch.records)


def test_nodes_that_are_only_silent_keep_their_run() -> None:
    coordinator, run = running_pair()
    let_pass(coordinator, 4.4)
    coordinator.handle(Disconnected(1), 4.5)
    let_pass(coordinator, 5.0)
    assert run.roll.all_silent
    assert refusal(connect(coordinator, 3, "n3", OTHER, 5.5)) is RefusalCode.SPEC_DIFFERS
    assert (coordinator.jobs["default"], run.durable.state) == (run, State.RUNNING)


# The last node


def test_a_run_that_had_a_round_waits_for_its_lost_nodes_for_as_long_as_they_may_have_workers() -> None:
    coordinator, run = running_pair()
    coordinator.handle(Disconnected(2), 1.0)
    coordinator.handle(Reported(1, an_observed(run="e-1", round=1, phase=Phase.RUNNING)), 1.3)
    let_pass(coordinator, 2.0)
    coordinator.handle(Reported(1, an_observed(run="e-1", round=1, phase=Phase.STOPPED)), 2.1)
    coordinator.handle(Disconnected(1), 3.0)
    let_pass(coordinator, 4.0)
    assert (run.durable.state, run.members) == (State.FORMING, {})
    end = 4.0 + coordinator.policy.outage_grace_s + an_offer().stop_timeout_s
    while (due := coordinator.next_deadline()) is not None and due < end:
        assert coordinator.handle(Tick(), due).records == ()
    assert due == end
    assert [type(record) for record in coordinator.handle(Tick(), due).records] == [RunEnded]


# What a waiting node receives


def wait_sent(batch: Batch, session: int) -> float | None:
    """Return how long the node is to wait."""
    (message,) = [send.message for send in batch.effects if isinstance(send, Send) and send.session == session]
    assert message.goal is Goal.WAIT
    return message.wait_s


def test_while_there_are_too_few_nodes_the_wait_is_the_join_timeout() -> None:
    coordinator = a_coordinator()
    batch = connect(coordinator, 1, "n1", a_spec(2, 4), 0.0, offer=an_offer("n1", join_timeout_s=60))
    assert wait_sent(batch, 1) == 60.0


def test_when_there_are_enough_the_wait_is_the_rest_of_the_settle_window() -> None:
    coordinator = a_coordinator(settle_s=2.0)
    spec, beat = a_spec(1, 3), an_observed(beat=True)
    assert wait_sent(connect(coordinator, 1, "n1", spec, 0.0), 1) == 2.0
    assert wait_sent(coordinator.handle(Reported(1, beat), 0.5), 1) == 1.5
    assert wait_sent(connect(coordinator, 2, "n2", spec, 1.0), 2) == 2.0
    assert wait_sent(coordinator.handle(Reported(1, beat), 1.25), 1) == 1.75


def test_a_join_timeout_that_ends_within_the_settle_window_is_what_is_sent() -> None:
    coordinator = a_coordinator(settle_s=2.0)
    batch = connect(coordinator, 1, "n1", a_spec(1, 3), 0.0, offer=an_offer("n1", join_timeout_s=0.5))
    assert wait_sent(batch, 1) == 0.5


# The size of a run


@pytest.fixture(scope="module")
def nearly_full() -> Coordinator:
    """Return a run that waits for many nodes, with room for one more, but not for the most workers of a node."""
    coordinator = a_coordinator()
    for number in range(1, RANKS_MAX // WORKERS_MAX + 1):
        offer = an_offer(f"n{number}", workers=WORKERS_MAX)
        assert connect(coordinator, number, f"n{number}", a_spec(1000, 1000), 0.0, offer=offer).records
    return coordinator


LEFT = RANKS_MAX % WORKERS_MAX


def test_a_node_that_would_make_the_run_larger_than_ranks_can_count_is_refused_for_now(
    nearly_full: Coordinator,
) -> None:
    offer = an_offer("last", workers=LEFT + 1)
    batch = connect(nearly_full, 900, "last", a_spec(1000, 1000), 0.0, offer=offer)
    assert refusal(batch) is RefusalCode.LIMIT
    (refuse,) = batch.effects
    assert isinstance(refuse, Refuse)
    assert refuse.message.retry
    assert str(RANKS_MAX) in refuse.message.message


def test_a_member_is_not_counted_twice_when_it_comes_back_or_is_replaced(nearly_full: Coordinator) -> None:
    join = a_join("n1", spec=a_spec(1000, 1000), offer=an_offer("n1", workers=WORKERS_MAX))
    for session, incarnation in ((901, 1), (902, 2)):
        younger = structs.replace(join, incarnation=incarnation)
        batch = nearly_full.handle(Connected(session, younger, "10.0.0.1", "10.0.0.254"), 0.0)
        assert session in [effect.session for effect in batch.effects if isinstance(effect, Send)]


def test_a_run_may_be_as_large_as_ranks_can_count(nearly_full: Coordinator) -> None:
    offer = an_offer("last", workers=LEFT)
    connect(nearly_full, 903, "last", a_spec(1000, 1000), 0.0, offer=offer)
    assert nearly_full.jobs["default"].roll.workers == RANKS_MAX
    nearly_full.handle(Disconnected(903), 0.0)
    let_pass(nearly_full, 1.0)
    assert nearly_full.jobs["default"].roll.workers == RANKS_MAX - LEFT


# The end of a run


def ended() -> tuple[Coordinator, Run]:
    """Bring a running pair to its end 100 s after its nodes came, and release the nodes."""
    coordinator, run = running_pair()
    for session in (1, 2):
        said = an_observed(run="e-1", round=1, phase=Phase.SUCCEEDED)
        coordinator.handle(Reported(session, said), 100.0)
    for session in (1, 2):
        coordinator.handle(Disconnected(session), 100.5)
    assert run.durable.state.ended
    return coordinator, run


def test_a_process_that_ran_when_the_job_succeeded_hears_of_that_and_trains_nothing() -> None:
    coordinator, _ = ended()
    batch = connect(coordinator, 3, "n3", OURS, 112.0, age_s=30.0)
    assert batch.records == ()
    [sent] = batch.effects
    assert isinstance(sent, Send)
    assert (sent.message.goal, sent.message.outcome) == (
        Goal.EXIT,
        Outcome(
            Result.SUCCEEDED, 0, "job default succeeded 12 s before this node came (run e-1): all workers succeeded"
        ),
    )
    coordinator.handle(Disconnected(3), 112.5)
    assert coordinator.jobs["default"].members == {}


@pytest.mark.parametrize("age_s", [11.5, 0.0, None], ids=["started after it", "just started", "of unknown age"])
def test_a_process_that_was_started_after_the_end_begins_another_run_and_is_warned(age_s: float | None) -> None:
    coordinator, _ = ended()
    batch = connect(coordinator, 3, "n3", OURS, 112.0, age_s=age_s)
    opened, _ = batch.records
    remark = "job default succeeded 12 s ago (run e-1); this begins run e-2"
    assert isinstance(opened, RunOpened)
    assert opened.reason == f"opened by node n3; {remark}"
    [sent] = batch.effects
    assert isinstance(sent, Send)
    assert (sent.message.goal, sent.message.remark) == (Goal.WAIT, remark)


def test_a_process_that_ran_when_the_job_was_stopped_hears_of_that() -> None:
    coordinator, run = running_pair()
    coordinator.handle(AdminRequested(9, StopJob("default", "operator", "")), 50.0)
    for session in (1, 2):
        said = an_observed(run="e-1", round=1, phase=Phase.STOPPED)
        coordinator.handle(Reported(session, said), 51.0)
    assert run.durable.state is State.STOPPED
    [sent] = connect(coordinator, 3, "n3", OURS, 52.0, age_s=30.0).effects
    assert isinstance(sent, Send)
    assert sent.message.outcome is not None
    assert sent.message.outcome.exit_code == ExitCode.STOPPED


def test_after_an_end_for_want_of_nodes_whoever_comes_begins_another_run_without_a_word() -> None:
    coordinator, run = running_pair()
    for session in (1, 2):
        said = an_observed(run="e-1", round=1, phase=Phase.STOPPED, leaving=True)
        coordinator.handle(Reported(session, said), 100.0)
    assert (run.durable.state.ended, run.durable.concluded) == (True, False)
    opened, *_ = connect(coordinator, 3, "n3", OURS, 112.0, age_s=30.0).records
    assert isinstance(opened, RunOpened)
    assert opened.reason == "opened by node n3"


def test_a_process_with_other_settings_begins_another_run() -> None:
    coordinator, _ = ended()
    opened, *_ = connect(coordinator, 3, "n3", OTHER, 112.0, age_s=30.0).records
    assert isinstance(opened, RunOpened)
