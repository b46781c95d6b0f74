"""Why a round ended, and whether it is charged."""

import math
from collections.abc import Sequence

import pytest
from msgspec import structs

from coordinatord.core.rounds.queries import past_round
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.records import RoundEnded
from coordinatord.core.rounds.values.root_cause import (
    GoodExit,
    LostNode,
    RoundVerdict,
    WorkerFailure,
    find_root_cause,
)
from coordinatord.protocol.messages import Cause, EarlyEnd, Ended, Follower, HangKind, Phase
from tests.support.builders import LOST_PEER, a_failure
from tests.support.script import play

COLLATERAL_S = 1.0


def failed(node: str, at: float, **values: object) -> WorkerFailure:
    return WorkerFailure(node, f"host-{node}", at, a_failure(**values))


def verdict(
    failures: list[WorkerFailure],
    losses: list[LostNode],
    consequences_from: float = math.inf,
    trigger: str = "the trigger",
    good_exits: Sequence[GoodExit] = (),
) -> RoundVerdict:
    return find_root_cause(trigger, consequences_from, failures, losses, good_exits, COLLATERAL_S)


def test_without_failures_the_trigger_is_the_reason_and_nobody_is_charged() -> None:
    assert verdict([], [LostNode("n1", 1.0)]) == RoundVerdict("the trigger", None)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "exit code 1"),
        ({"error": "ValueError: no"}, "ValueError: no"),
        ({"message": "its last output: no data"}, "its last output: no data"),
        ({"exit_code": 127, "message": "no such file: trian.py"}, "exit code 127: no such file: trian.py"),
        ({"exit_code": -6, "error": "KeyError: 1", "message": "m"}, "killed by SIGABRT: KeyError: 1"),
        ({"error": "ValueError: " + "x" * 200}, "ValueError: " + "x" * 185 + "..."),
        ({"error": "E: " + "x" * 200 + ": free it"}, "E: " + "x" * 185 + " ... free it"),
    ],
)
def test_the_reason_is_a_headline(facts: dict[str, object], said: str) -> None:
    assert verdict([failed("n1", 5.0, **facts)], []).reason == f"rank 0 on node n1 failed: {said}"


GONE = {"error": LOST_PEER}
BUG = {"error": "NameError: name 'lr' is not defined"}


@pytest.mark.parametrize(
    ("others", "who"),
    [
        ([failed("n2", 5.1, rank=1, **BUG)], "all 2 ranks failed with the same error"),
        (
            [failed("n2", 5.1, rank=1, **BUG), failed("n3", 5.2, rank=2, **BUG)],
            "all 3 ranks failed with the same error",
        ),
        (
            [failed("n2", 5.1, rank=1, **BUG), failed("n3", 5.2, **GONE)],
            "2 ranks failed with the same error, such as rank 0 on node n1",
        ),
        ([failed("n2", 5.1, rank=1, error="NameError: name 'x' is not defined")], "rank 0 on node n1 failed"),
        ([failed("n2", 5.1, rank=1, error="ValueError: lr")], "rank 0 on node n1 failed"),
        ([failed("n2", 5.1, rank=1, **GONE)], "rank 0 on node n1 failed"),
    ],
)
def test_a_bug_that_several_workers_have_is_not_told_as_the_failure_of_one(
    others: list[WorkerFailure], who: str
) -> None:
    failures = [failed("n1", 5.0, **BUG), *others]
    judged = find_root_cause("the trigger", math.inf, failures, [], (), COLLATERAL_S, workers=len(failures))
    assert judged.reason == f"{who}: {BUG['error']}"
    assert judged.root_cause is not None
    assert judged.root_cause.node == "n1"


def test_workers_that_were_stopped_before_they_had_exited_count_if_they_have_the_error_of_the_first() -> None:
    first, same = failed("n1", 5.0, rank=0, **BUG), Follower(3, -15, same_error=True)
    stopped = [
        failed("n2", 4.0, rank=2, exit_code=-15, stopped=True, followers=(same, Follower(4, 1)), **BUG),
        failed("n3", 4.0, rank=5, exit_code=1, stopped=True, followers=(same,), error="RuntimeError: SIGTERM came"),
    ]
    judged = find_root_cause("the trigger", math.inf, [first], [], (), COLLATERAL_S, stopped, workers=6)
    assert judged.reason == f"3 ranks failed with the same error, such as rank 0 on node n1: {BUG['error']}"
    assert judged.root_cause == structs.replace(first, same_error_count=2, workers=6)
    assert find_root_cause("the trigger", None, [], [], (), COLLATERAL_S, stopped, workers=6).reason == "the trigger"


@pytest.mark.parametrize(
    ("facts", "others", "who"),
    [
        ({"exit_code": -11}, {"exit_code": 139}, "all 2 ranks failed with the same error: killed by SIGSEGV"),
        ({"exit_code": -11}, {"exit_code": -6}, "rank 0 on node n1 failed: killed by SIGSEGV"),
        ({"exit_code": 3}, {"exit_code": 3}, "all 2 ranks failed with the same error: exit code 3"),
        ({"exit_code": 1}, {"exit_code": 1}, "rank 0 on node n1 failed: exit code 1"),
        (
            {"exit_code": -6},
            {"exit_code": -6, "last_lines": (LOST_PEER,)},
            "rank 0 on node n1 failed: killed by SIGABRT",
        ),
    ],
)
def test_without_words_a_signal_or_an_exit_code_is_the_error(
    facts: dict[str, object], others: dict[str, object], who: str
) -> None:
    failures = [failed("n1", 5.0, **facts), failed("n2", 5.1, **others)]
    judged = find_root_cause("the trigger", math.inf, failures, [], (), COLLATERAL_S, workers=2)
    assert judged.reason == who


def test_a_hang_and_a_collective_that_failed_are_no_error_that_several_have() -> None:
    for facts in ({"left": True, "error": "RuntimeError: no"}, {"hang": HangKind.STUCK, "message": "rank 0 waits"}):
        failures = [failed("n1", 5.0, **facts), failed("n2", 5.1, **facts)]
        assert "same error" not in find_root_cause("", math.inf, failures, [], (), COLLATERAL_S, workers=2).reason


STORE = {"error": "torch.distributed.DistNetworkError: Connection reset by peer"}
STORE_LINE = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
OWN = {"error": "ValueError: no labels", "last_lines": (STORE_LINE, "Traceback", "ValueError: no labels")}
NAMED = "rank 3 on node n2 exited with 0 while rank 0 on node n1 still needed it"


@pytest.mark.parametrize(
    ("failures", "losses", "exits", "reason", "cause"),
    [
        ([failed("n1", 5.0, **GONE)], [], [(3, 4.9)], NAMED, Cause.USER_CODE),
        ([failed("n1", 5.0, **STORE)], [], [(3, 1.0)], NAMED, Cause.USER_CODE),
        (
            [failed("n1", 5.0, **GONE)],
            [],
            [(4, 4.8), (3, 4.9)],
            "rank 4 on node n2, rank 3 on node n2 exited with 0 while rank 0 on node n1 still needed them",
            Cause.USER_CODE,
        ),
        ([failed("n1", 5.0, **GONE)], [], [(3, 5.1)], NAMED, Cause.USER_CODE),
        ([failed("n1", 5.0, **GONE)], [], [(3, 6.1)], f"rank 0 on node n1 failed: {LOST_PEER}", Cause.NETWORK),
        ([failed("n1", 5.0, **GONE)], [], [], f"rank 0 on node n1 failed: {LOST_PEER}", Cause.NETWORK),
        ([failed("n1", 5.0, exit_code=-11)], [], [(3, 4.9)], "rank 0 on node n1 failed: killed by SIGSEGV", "unknown"),
        ([failed("n1", 5.0, xids=(79,), **GONE)], [], [(3, 4.9)], f"rank 0 on node n1 failed: {LOST_PEER}", "device"),
        ([failed("n1", 5.0, exit_code=-6, last_lines=(STORE_LINE,))], [], [(3, 4.9)], NAMED, Cause.USER_CODE),
        ([failed("n1", 5.0, **OWN)], [], [(3, 4.9)], "rank 0 on node n1 failed: ValueError: no labels", "user_code"),
        ([failed("n1", 5.0, **GONE), failed("n3", 5.1, exit_code=2)], [], [(3, 4.9)], "rank 0 on node n3", "unknown"),
        ([failed("n1", 5.0, **GONE)], [LostNode("n3", 5.2)], [(3, 4.9)], "lost node n3", None),
    ],
    ids=[
        "connection",
        "store",
        "two",
        "a moment later",
        "later",
        "nobody",
        "crash",
        "device",
        "no error",
        "own error",
        "another failure",
        "a lost node",
    ],
)
def test_who_left_early_is_named_where_others_failed_for_lack_of_it(
    failures: list[WorkerFailure],
    losses: list[LostNode],
    exits: list[tuple[int, float]],
    reason: str,
    cause: Cause | None,
) -> None:
    judged = verdict(failures, losses, good_exits=[GoodExit("n2", rank, at) for rank, at in exits])
    assert judged.reason.startswith(reason)
    assert (judged.root_cause and judged.root_cause.cause) == cause


def test_how_long_before_the_failure_a_worker_had_left_is_known() -> None:
    exits = [GoodExit("n2", 3, 6.5), GoodExit("n2", 4, 4.0), GoodExit("n3", 5, 3.0)]
    judged = verdict([failed("n1", 5.0, **GONE)], [], good_exits=exits)
    assert judged.root_cause is not None
    assert judged.root_cause.early == (EarlyEnd("n3", 5, 2.0), EarlyEnd("n2", 4, 1.0))


def test_the_earliest_failure_is_the_cause_whichever_was_heard_first() -> None:
    first = failed("n2", 4.9)
    judged = verdict([failed("n1", 5.0), first, failed("n3", 5.1)], [])
    assert judged.root_cause == first
    assert judged.reason == "rank 0 on node n2 failed: exit code 1"


@pytest.mark.parametrize("later_s", [0.003, COLLATERAL_S])
def test_who_lost_a_connection_did_not_fail_first_even_if_that_was_seen_first(later_s: float) -> None:
    """A worker in place reports its failed collective at once; the exit that caused it is seen on another host."""
    killed = failed("n2", 5.0 + later_s, exit_code=-9)
    judged = verdict([failed("n1", 5.0, error=LOST_PEER), killed, failed("n3", 5.1, error=LOST_PEER)], [])
    assert judged.root_cause == killed


def test_a_node_that_sees_its_own_worker_end_later_takes_back_what_it_said() -> None:
    stage = play("join n1 min=1 max=1", "running n1", "fail n1 of=peer")
    run = stage.run
    assert past_round.verdict(run).root_cause is not None
    member = run.members["n1"]
    run.evidence.record_failure(member, a_failure(rank=1, exit_code=-9), stage.now)
    assert past_round.verdict(run).reason == "rank 1 on node n1 failed: killed by SIGKILL"
    run.evidence.record_failure(member, a_failure(rank=2, exit_code=-11), stage.now)
    assert past_round.verdict(run).reason == "rank 1 on node n1 failed: killed by SIGKILL"


def test_a_report_that_was_under_way_for_long_is_corrected_by_a_later_one() -> None:
    """While a switch was cut, the first report of n1 was held up, and said that its worker had just failed."""
    stage = play("join n1 n2 min=2 max=2", "running n1 n2", "advance 10s", "fail n1")
    run = stage.run
    for node, age_s in [("n2", 8.0), ("n1", 9.0), ("n2", 8.005)]:  # the last one is the drift of its clock
        run.evidence.record_failure(run.members[node], a_failure(age_s=age_s), stage.now)
    cause = past_round.verdict(run).root_cause
    assert cause is not None
    assert (cause.node, cause.at) == ("n1", stage.now - 9.0)
    assert run.evidence.failures["n2"].at == stage.now - 8.0


def test_a_failure_long_after_a_lost_connection_did_not_cause_it() -> None:
    first = failed("n1", 5.0, error=LOST_PEER)
    assert verdict([first, failed("n2", 5.01 + COLLATERAL_S, exit_code=-9)], []).root_cause == first


def test_of_lost_connections_alone_the_first_is_the_cause() -> None:
    first = failed("n2", 4.9, error=LOST_PEER)
    judged = verdict([failed("n1", 5.0, error=LOST_PEER), first], [])
    assert judged.root_cause == structs.replace(first, same_error_count=1)
    assert judged.reason.startswith("rank 0 on node n2 failed: ")


@pytest.mark.parametrize(("silent_since", "charged"), [(3.0, False), (5.0, False), (6.0, False), (6.01, True)])
def test_a_node_lost_before_or_just_after_a_failure_caused_it(silent_since: float, charged: bool) -> None:
    judged = verdict([failed("n1", 5.0)], [LostNode("n2", silent_since)])
    assert (judged.root_cause is not None) == charged
    if not charged:
        assert judged.reason == "lost node n2; workers on 1 other node failed in consequence"


@pytest.mark.parametrize("lost", ["n1", "n2"])
def test_an_error_of_the_script_beside_a_lost_node_is_named_and_free(lost: str) -> None:
    first = failed("n1", 5.0, **BUG)
    judged = verdict([first, failed("n3", 5.1, **GONE), failed("n4", 5.2, **BUG)], [LostNode(lost, 5.5)])
    assert judged.root_cause is None
    assert judged.excused == structs.replace(first, excused_by=lost, same_error_count=1)
    assert judged.reason == (
        f"lost node {lost}; workers on 1 other node failed in consequence; "
        f"not charged, as the loss may have caused it: 2 ranks failed with the same error: {BUG['error']}"
    )


def test_an_error_of_the_script_after_a_stop_for_something_else_is_not_named_beside_a_lost_node() -> None:
    judged = verdict([failed("n1", 5.0, **BUG)], [LostNode("n2", 5.5)], consequences_from=4.9)
    assert judged == RoundVerdict("lost node n2; workers on 1 other node failed in consequence", None)


def test_of_several_lost_nodes_the_first_is_the_cause() -> None:
    judged = verdict([failed("n1", 5.0)], [LostNode("n3", 4.0), LostNode("n2", 3.0)])
    assert judged.reason.startswith("lost node n2;")


def test_a_lost_node_is_not_counted_among_the_others() -> None:
    judged = verdict([failed("n1", 5.0), failed("n2", 5.0)], [LostNode("n2", 5.2)])
    assert judged.reason == "lost node n2; workers on 1 other node failed in consequence"


def test_workers_that_left_their_round_because_a_node_was_lost_have_not_failed() -> None:
    left = failed("n1", 5.0, left=True)
    judged = verdict([left], [LostNode("n2", 4.0)])
    assert judged.reason == "lost node n2; workers on 1 other node left the round in consequence"
    assert str(left).startswith("a collective failed on rank ")


def test_the_failures_of_a_lost_node_alone_have_no_consequence() -> None:
    assert verdict([failed("n2", 5.0)], [LostNode("n2", 5.2)]) == RoundVerdict("lost node n2", None)


def test_a_failure_after_a_stop_for_something_else_is_not_charged() -> None:
    judged = verdict([failed("n1", 5.0)], [], consequences_from=5.0)
    assert judged == RoundVerdict("the trigger; workers on 1 other node failed in consequence", None)


def test_a_failure_before_a_stop_for_something_else_is_charged() -> None:
    failure = failed("n1", 4.99)
    assert verdict([failure], [], consequences_from=5.0).root_cause == failure


def test_a_failure_that_may_have_come_after_the_stop_is_not_charged() -> None:
    """A node was cut off for long, and its clock goes faster than that of the coordinator."""
    assert verdict([failed("n1", 4.996, age_s=6.3)], [], consequences_from=5.0).root_cause is None
    assert verdict([failed("n1", 4.996, age_s=0.1)], [], consequences_from=5.0).root_cause is not None


def test_what_fails_because_a_round_of_lost_records_is_stopped_is_free() -> None:
    stage = play(
        "join n1 n2 min=2 max=2",
        "running n1 n2",
        "recall n1 round=7",
        "advance 1s",
        "recall n2 round=7",
        "fail n2",
        "failed n2",
        "stopped n1",
    )
    [ended] = stage.records(RoundEnded)
    assert not ended.charged


def test_what_fails_as_a_node_ends_its_workers_for_being_out_of_touch_is_free() -> None:
    stage = play("join n1 n2 min=2 max=2", "running n1 n2", "advance 1s", "stopping n1")
    assert stage.state() is State.STOPPING
    stage.play("advance 1s", "fail n2", "failed n2", "stopped n1")
    [ended] = stage.records(RoundEnded)
    assert not ended.charged
    assert ended.reason.startswith("node n1 had ended the workers, out of touch for too long")


@pytest.mark.parametrize("first", ["n1", "n2"])
@pytest.mark.parametrize(("error", "charged"), [(LOST_PEER, False), (BUG["error"], True)])
def test_who_lost_a_connection_as_a_node_ended_its_workers_out_of_touch_is_free(
    error: str, first: str, charged: bool
) -> None:
    """The coordinator was away, and a worker of n2 had exited with 0 before another one lost its connection to n1."""
    stage = play("join n1 n2 min=2 max=2 workers=2", "running n1 n2", "advance 400s")
    failure = a_failure(rank=3, age_s=5.0, error=error)
    n2 = {"ended": (Ended(2, 5.1),), "failure": failure, "phase": Phase.FAILED}
    reports = [("n1", {"phase": Phase.STOPPED, "cut_off": True}), ("n2", n2)]
    for node, changes in reports if first == "n1" else reversed(reports):
        stage.report(node, **changes)
    [ended] = stage.records(RoundEnded)
    assert ended.charged == charged
    said = f"rank 3 on node n2 failed: {error}"
    free = "node n1 had ended the workers, out of touch for too long; workers on 1 other node failed in consequence"
    assert ended.reason == (said if charged else free)
