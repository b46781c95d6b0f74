"""Which nodes are let in, and to which run; what the others receive."""

import pytest
from msgspec import structs

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Batch, Refuse, Send
from coordinatord.core.rounds.events import Connected, Disconnected
from coordinatord.core.rounds.queries.admission import (
    RefusedError,
    check_incarnation,
    check_room,
    check_spec,
    check_token,
)
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.records import NodeJoined, RunOpened
from coordinatord.protocol.fields import RANKS_MAX, WORKERS_MAX
from coordinatord.protocol.messages import Goal, JobSpec, Launcher, Outcome, RefusalCode, Result
from coordinatord.protocol.spec_flags import nnodes
from tests.support.builders import a_coordinator, a_join, a_member, a_run, a_spec, an_offer, let_pass
from tests.support.script import Stage, play


def refusal_of_spec(ours: JobSpec, theirs: JobSpec) -> str:
    run = a_run(ours)
    with pytest.raises(RefusedError) as caught:
        check_spec(run, a_join("second", job="mnist", spec=theirs))
    refused = caught.value.refused
    assert refused.code is RefusalCode.SPEC_DIFFERS
    assert not refused.retry
    return refused.message


def test_all_differences_are_named_at_once() -> None:
    text = refusal_of_spec(a_spec(1, 1, max_restarts=0), a_spec(1, RANKS_MAX, max_restarts=3))
    assert "--nnodes is 1: on this node (second), but 1 on first" in text
    assert "--max-restarts is 3 on this node (second), but 0 on first" in text


def test_a_job_of_torchrun_and_nodeclient_both_is_refused_by_what_started_each() -> None:
    text = refusal_of_spec(a_spec(), structs.replace(a_spec(1, 9, 7), launcher=Launcher.TORCHRUN))
    assert text == (
        "job mnist: this node (second) is started by torchrun, but first, which was first, by nodeclient:"
        " start all nodes in the same way, or give one of the two another job id"
    )


@pytest.mark.parametrize(
    ("spec", "text"), [(a_spec(3, 3), "3"), (a_spec(1, 4), "1:4"), (a_spec(2, RANKS_MAX), "2:"), (a_spec(1, 1), "1")]
)
def test_a_range_of_nodes_is_written_as_the_flag_has_it(spec: JobSpec, text: str) -> None:
    assert nnodes(spec) == text


def test_a_full_coordinator_refuses_for_now() -> None:
    check_room(9, 10)
    with pytest.raises(RefusedError, match="already has 10 nodes, its limit") as caught:
        check_room(10, 10)
    assert caught.value.refused.retry
    assert caught.value.refused.code is RefusalCode.LIMIT


@pytest.mark.parametrize("session", [1, None])
def test_what_a_process_sent_before_its_last_join_comes_too_late(session: int | None) -> None:
    known = a_member("n1")
    known.session.id, known.session.join = session, a_join("n1", age_s=7.0)
    for age_s in (7.0, 8.0, None):
        check_incarnation(known, a_join("n1", age_s=age_s))
    check_incarnation(known, a_join("n1", incarnation=2, age_s=0.1))
    with pytest.raises(RefusedError, match="node n1 joined job default once more since it sent this") as caught:
        check_incarnation(known, a_join("n1", age_s=6.9))
    assert caught.value.refused.retry


@pytest.mark.parametrize(("session", "expired"), [(None, False), (1, True)])
def test_one_that_cannot_be_heard_has_no_claim(session: int | None, expired: bool) -> None:
    known = a_member("n1")
    known.session.id, known.lease.expired = session, expired
    check_incarnation(known, a_join("n1", incarnation=0))


def a_claim(incarnation: int = 1, token: str = "stranger") -> Connected:  # noqa: S107 - a name, and no secret
    return Connected(9, a_join("n1", job="mnist", incarnation=incarnation), "10.0.0.66", "10.0.0.9", token)


def a_bearer() -> Member:
    member = a_member("n1")
    member.session.token = "nodes"  # noqa: S105 - a name, and no secret
    return member


@pytest.mark.parametrize("incarnation", [0, 1, 2])
@pytest.mark.parametrize("session", [1, None])
def test_the_identity_of_a_node_that_may_be_heard_is_refused_to_another_tokens_bearer(
    incarnation: int, session: int | None
) -> None:
    known = a_bearer()
    known.session.id = session
    with pytest.raises(RefusedError) as caught:
        check_token(known, a_claim(incarnation))
    refused = caught.value.refused
    assert (refused.code, refused.retry) == (RefusalCode.FORBIDDEN, True)
    assert refused.message == (
        "node n1 of job mnist is here already, from 10.0.0.1, with the token nodes; this one has the token stranger:"
        " if it is the same node, revoke its old token (coordinatord token revoke nodes), else give each node its own"
        " --node-id"
    )


def test_an_identity_is_free_for_its_own_token_for_any_token_after_the_lease_and_where_none_is_known() -> None:
    check_token(None, a_claim())
    check_token(a_bearer(), a_claim(token="nodes"))  # noqa: S106 - a name, and no secret
    check_token(a_member("n1"), a_claim())
    silent = a_bearer()
    silent.lease.expired = True
    check_token(silent, a_claim())


WARNING = (
    "node n2 was started with another command than node n1, and both are in job default: "
    "if that is not meant, give each training its own --job-id"
)


def reason(stage: Stage) -> str:
    """Return the reason for which the last node joined."""
    return [record.reason for record in stage.records(NodeJoined)][-1]


def test_a_node_with_another_command_than_the_first_is_let_in_with_a_warning_that_names_both() -> None:
    stage = play("join n1 min=3 max=3 command=script-1a", "join n2 min=3 max=3 command=script-1b")
    assert (stage.desired("n2").goal, stage.desired("n2").remark) == (Goal.WAIT, WARNING)
    assert reason(stage) == "host host-n2 at 10.0.0.2 with 1 worker; its command differs from that of node n1"


@pytest.mark.parametrize(("first", "second"), [("script-1a", "script-1a"), ("", "script-1a"), ("script-1a", "")])
def test_nothing_is_remarked_on_where_no_difference_is_known(first: str, second: str) -> None:
    stage = play(f"join n1 min=3 max=3 command={first}", f"join n2 min=3 max=3 command={second}")
    assert (stage.desired("n2").remark, "command" in reason(stage)) == ("", False)


def test_the_warning_is_sent_until_the_workers_run_and_again_after_a_reconnect_before_that() -> None:
    stage = play("join n1 min=2 max=2 command=script-1a", "join n2 min=2 max=2 command=script-1b")
    assert (stage.desired("n2").goal, stage.desired("n2").remark) == (Goal.RUN, WARNING)
    stage.puppets["n2"].desired = None
    stage.play("drop n2", "reconnect n2")
    assert (stage.desired("n2").goal, stage.desired("n2").remark) == (Goal.RUN, WARNING)
    stage.play("running n1 n2", "advance 1s")
    assert stage.desired("n2").remark == ""


def test_a_job_begun_anew_by_another_command_has_both_remarks() -> None:
    stage = play("join n1 min=1 max=1 command=script-1a", "succeed n1", "advance 4s")
    stage.play("join n3 min=1 max=1 command=script-1c age_s=0", "join n4 min=1 max=1 command=script-1d")
    again, other = stage.desired("n3").remark, stage.desired("n4").remark
    assert again.endswith("this begins run e-2")
    assert other.startswith(f"{again}; node n4 was started with another command than node n3")


def test_a_node_with_another_script_is_another_training_and_is_refused() -> None:
    stage = play("join n1 min=1 max=1 command=script-1a")
    [refused] = stage.play("join n2 min=1 max=1 command=script-2a")
    assert refused.endswith(
        "-> n2: refused for good (spec_differs): another training runs under job id default, and node n1 of it starts"
        " another script: give this one a --job-id of its own, or end that one first: nodeclient stop default"
    )
    stage.play("join n2 min=1 max=1 command=script-2a role=server")
    assert stage.desired("n2").goal is Goal.WAIT, "nodes of another role may run something else"


def test_a_node_that_is_gone_keeps_out_no_other_script() -> None:
    stage = play("join n1 min=1 max=1 command=script-1a", "drop n1", "join n2 min=1 max=1 command=script-2a")
    assert stage.puppets["n2"].desired is not None


@pytest.mark.parametrize(
    ("command", "result", "code", "text"),
    [
        ("script-1a", Result.SUCCEEDED, 0, ""),
        ("script-1b", Result.FAILED, 75, ", and its command differs from that of node n1"),
    ],
)
def test_a_spare_says_that_it_ran_nothing_and_succeeds_only_if_its_command_was_the_jobs(
    command: str, result: Result, code: int, text: str
) -> None:
    stage = play("join n1 min=1 max=1 command=script-1a", f"join n2 min=1 max=1 command={command}", "succeed n1")
    assert stage.desired("n1").outcome == Outcome(Result.SUCCEEDED, 0, "all workers succeeded")
    assert stage.desired("n2").outcome == Outcome(
        result, code, f"all workers succeeded; this node was a spare and ran no worker{text}"
    )


PAIR = ("join n1 n2 min=2 max=2", "running n1 n2")
OTHER = "min=1 max=8 restarts=0"
"""Settings that are not those of the pair."""


def openings(stage: Stage) -> list[str]:
    """Return why each run was opened."""
    return [record.reason for record in stage.records(RunOpened)]


def test_a_join_of_a_spare_that_was_on_its_way_beyond_the_end_of_the_job_begins_nothing() -> None:
    stage = play(*PAIR, "advance 1s", "join n3 min=2 max=2 age_s=1", "advance 8s", "succeed n1 n2", "advance 2s")
    before = len(stage.past)
    stage.play("join n3 min=2 max=2 age_s=1.5")
    assert (stage.past[before:], stage.desired("n3").goal) == ([], Goal.EXIT)


# Other settings


def test_one_of_the_gone_nodes_may_itself_come_back_with_other_settings() -> None:
    stage = play(*PAIR, "drop n1 n2", "advance 1.5s")
    run = stage.run
    stage.play(f"join n1 {OTHER} incarnation=2")
    assert run.members == {}
    assert list(stage.run.members) == ["n1"]


def test_nodes_that_are_only_silent_keep_their_run() -> None:
    stage = play(*PAIR, "silence n1 n2", "advance 4.5s", "drop n1", "advance 0.5s")
    run = stage.run
    assert run.roll.all_silent
    [refused] = stage.play("advance 0.5s", f"join n3 {OTHER}")[-1:]
    assert "(spec_differs)" in refused
    assert (stage.run, stage.state()) == (run, State.RUNNING)


# The size of a run


def connect(coordinator: Coordinator, session: int, node: str, workers: int) -> Batch:
    join = a_join(node, spec=a_spec(1000, 1000), offer=an_offer(node, workers=workers))
    return coordinator.handle(Connected(session, join, f"10.0.0.{session}", "10.0.0.254"), 0.0)


@pytest.fixture(scope="module")
def nearly_full() -> Coordinator:
    """Return a run that waits for many nodes, with room for one more, but not for the most workers of a node."""
    coordinator = a_coordinator()
    for number in range(1, RANKS_MAX // WORKERS_MAX + 1):
        assert connect(coordinator, number, f"n{number}", WORKERS_MAX).records
    return coordinator


LEFT = RANKS_MAX % WORKERS_MAX


def test_a_node_that_would_make_the_run_larger_than_ranks_can_count_is_refused_for_now(
    nearly_full: Coordinator,
) -> None:
    [refuse] = connect(nearly_full, 900, "last", LEFT + 1).effects
    assert isinstance(refuse, Refuse)
    assert (refuse.message.code, refuse.message.retry) == (RefusalCode.LIMIT, True)
    assert str(RANKS_MAX) in refuse.message.message


def test_a_member_is_not_counted_twice_when_it_comes_back_or_is_replaced(nearly_full: Coordinator) -> None:
    join = a_join("n1", spec=a_spec(1000, 1000), offer=an_offer("n1", workers=WORKERS_MAX))
    for session, incarnation in ((901, 1), (902, 2)):
        younger = structs.replace(join, incarnation=incarnation)
        batch = nearly_full.handle(Connected(session, younger, "10.0.0.1", "10.0.0.254"), 0.0)
        assert session in [effect.session for effect in batch.effects if isinstance(effect, Send)]


def test_a_run_may_be_as_large_as_ranks_can_count(nearly_full: Coordinator) -> None:
    connect(nearly_full, 903, "last", LEFT)
    assert nearly_full.jobs["default"].roll.workers == RANKS_MAX
    nearly_full.handle(Disconnected(903), 0.0)
    let_pass(nearly_full, 1.0)
    assert nearly_full.jobs["default"].roll.workers == RANKS_MAX - LEFT


# The end of a run

ENDED = (*PAIR, "advance 100s", "succeed n1 n2", "drop n1 n2", "advance 12s")


def test_a_process_that_ran_when_the_job_succeeded_hears_of_that_and_trains_nothing() -> None:
    stage = play(*ENDED)
    before = len(stage.past)
    stage.play("join n3 min=2 max=2 age_s=30")
    assert stage.past[before:] == []
    assert (stage.desired("n3").goal, stage.desired("n3").outcome) == (
        Goal.EXIT,
        Outcome(
            Result.SUCCEEDED, 0, "job default succeeded 12 s before this node came (run e-1): all workers succeeded"
        ),
    )
    stage.play("drop n3")
    assert stage.run.members == {}


@pytest.mark.parametrize("age", ["age_s=11.5", "age_s=0", ""], ids=["started after it", "just started", "of no age"])
def test_a_process_that_was_started_after_the_end_begins_another_run_and_is_warned(age: str) -> None:
    stage = play(*ENDED, f"join n3 min=2 max=2 {age}")
    remark = "job default succeeded 12 s ago (run e-1); this begins run e-2"
    assert openings(stage)[1:] == [f"opened by node n3; {remark}"]
    assert (stage.desired("n3").goal, stage.desired("n3").remark) == (Goal.WAIT, remark)


def test_after_an_end_for_want_of_nodes_whoever_comes_begins_another_run_without_a_word() -> None:
    stage = play(*PAIR, "advance 100s", "leave n1 n2", "stopped n1 n2")
    durable = stage.run.durable
    assert (durable.state.ended, durable.concluded) == (True, False)
    stage.play("join n3 min=2 max=2 age_s=30")
    assert openings(stage)[1:] == ["opened by node n3"]


def test_a_process_with_other_settings_begins_another_run() -> None:
    assert len(openings(play(*ENDED, f"join n3 {OTHER} age_s=30"))) == 2
