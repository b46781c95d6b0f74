"""Workers that can go into another round as the same processes leave the present one instead of ending."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinatord.protocol.messages import Goal, Phase
from coordinatord.protocol.worker_starts import ColdCause, WhyCold, WorkerStarts
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S
from nodeclient.core.effects import (
    Dismiss,
    Exit,
    Hold,
    Kill,
    LeaveRound,
    Level,
    Notice,
    Probe,
    SaveKept,
    SendObserved,
    Start,
    Sweep,
    Terminate,
)
from nodeclient.core.staying import HOLD_S
from tests.support.bench import SETTINGS, Bench, kinds
from tests.support.builders import LOST_PEER
from tests.support.staying_bench import RESUME, elastic, held


@pytest.mark.parametrize("planned", [False, True])
def test_workers_leave_the_round_and_go_into_the_next_one(planned: bool) -> None:
    bench = elastic()
    assert kinds(bench.receive(Goal.STOP, planned=planned)) == [LeaveRound, Notice]
    assert kinds(bench.left(0)) == [Hold]
    assert kinds(bench.left(1)) == [Hold, Sweep]
    bench.swept()
    assert bench.observed.phase is Phase.STOPPED
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == (0, 1)
    assert not bench.count(Terminate)


def test_state_is_saved_before_workers_leave() -> None:
    bench = elastic(keeps=True)
    bench.keep(0.4)
    assert kinds(bench.receive(Goal.STOP)) == [SaveKept, Notice]
    assert kinds(bench.saved()) == [LeaveRound]


def test_one_that_ends_is_started_anew_and_the_other_stays() -> None:
    bench = elastic()
    assert kinds(bench.exited(0, -9)) == [Notice, LeaveRound, SendObserved]
    assert kinds(bench.left(1)) == [Hold, Sweep]
    bench.swept()
    assert bench.observed.phase is Phase.FAILED
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == (1,)


def test_a_worker_whose_collective_fails_is_held_and_reported() -> None:
    bench = elastic()
    assert kinds(bench.loses_peer(0, LOST_PEER)) == [Notice, LeaveRound, SendObserved]
    text = "a collective failed on rank 0, so it leaves its round; its process goes on"
    assert bench.last(Notice) == Notice(Level.WARNING, text, "worker_failed")
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.exit_code, failure.error, failure.left) == (1, LOST_PEER, True)
    assert kinds(bench.left(0)) == [Hold]
    assert kinds(bench.left(1)) == [Hold, Sweep]
    bench.swept()
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == (0, 1)


def test_a_worker_whose_collective_failed_is_out_of_the_round_before_it_is_asked() -> None:
    bench = elastic(keeps=True)
    bench.keep(0.4)
    assert kinds(bench.loses_peer(0, LOST_PEER)) == [Notice, SaveKept, SendObserved]
    assert kinds(bench.left(0)) == [Hold]
    assert kinds(bench.saved()) == [LeaveRound]
    assert kinds(bench.left(1)) == [Hold, Sweep]


def test_one_that_hangs_while_it_destroys_its_groups_is_not_taken_over() -> None:
    bench = elastic()
    bench.loses_peer(0, LOST_PEER)
    bench.left(1)
    bench.advance(ABORT_TIMEOUT_S)
    assert bench.count(Terminate) == bench.count(Kill) == 1
    assert kinds(bench.exited(0, -9)) == [Sweep]
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.exit_code, failure.error, failure.followers) == (1, LOST_PEER, ()), "it failed once"
    assert not failure.left
    bench.swept()
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == (1,)
    bench.started(warm=1)
    assert bench.observed.begun == WorkerStarts(
        1, 1, 0, "a worker was not out of its round in time; see --abort-timeout"
    )


def test_a_worker_fails_once_in_a_round() -> None:
    bench = elastic()
    bench.loses_peer(0, LOST_PEER)
    assert bench.loses_peer(0, LOST_PEER) == []


def test_the_end_of_a_worker_comes_before_the_collective_that_failed_of_it() -> None:
    bench = elastic()
    bench.loses_peer(0, LOST_PEER)
    bench.exited(1, -9)
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (1, -9)
    assert [(follower.rank, follower.exit_code) for follower in failure.followers] == [(0, 1)]


def test_a_worker_that_is_killed_while_the_round_ends_is_named() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.exited(0, -9)
    failure = bench.observed.failure
    assert failure is not None, "nobody here has sent it a signal"
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.advance(ABORT_TIMEOUT_S)
    bench.exited(0, -9)
    assert bench.observed.failure is None, "it may have been ended by this node"


def test_who_is_not_out_in_time_is_ended_with_the_others_held() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.left(0)
    bench.advance(ABORT_TIMEOUT_S - 0.01)
    assert not bench.count(Terminate)
    bench.advance(0.02)
    assert bench.count(Terminate) == bench.count(Kill) == 1, "it had its time"
    assert bench.left(1) == [], "that is too late"
    assert kinds(bench.exited(1, -9)) == [Sweep]
    bench.swept()
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == (0,)


def test_in_a_planned_stop_who_is_not_out_in_time_may_still_save() -> None:
    bench = elastic()
    bench.receive(Goal.STOP, planned=True)
    bench.advance(ABORT_TIMEOUT_S)
    assert (bench.count(Terminate), bench.count(Kill)) == (1, 0)
    bench.advance(SETTINGS.stop_timeout_s)
    assert bench.count(Kill) == 1


def test_nobody_waits_for_workers_that_all_refuse() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.refuses(0)
    assert not bench.count(Terminate)
    bench.refuses(1)
    bench.advance(0.0)
    assert bench.count(Terminate) == 1


def test_nobody_waits_for_a_worker_that_refuses_and_another_that_is_cut_off() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.stays(0, able=False)
    assert not bench.count(Terminate)
    bench.refuses(1)
    bench.advance(0.0)
    assert bench.count(Terminate) == 1


def test_a_node_says_how_its_workers_were_begun_and_why_not_in_place() -> None:
    bench = held()
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    bench.started()
    assert bench.observed.begun == WorkerStarts(2, 0, 0)
    bench.stays(0, 1)
    bench.receive(Goal.STOP, round=2)
    bench.left(0)
    bench.advance(ABORT_TIMEOUT_S)
    bench.exited(1, -9)
    bench.swept()
    bench.receive(Goal.RUN, round=3, resume=RESUME)
    probing = bench.observed
    assert probing.begun is None
    bench.started(warm=1)
    assert bench.observed.begun == WorkerStarts(
        1, 1, 0, "a worker was not out of its round in time; see --abort-timeout"
    )


def test_workers_that_are_all_cold_are_nothing_to_speak_of() -> None:
    assert Bench().running().observed.begun is None


def test_workers_that_are_cold_though_they_were_to_be_forked_are_reported_with_the_reason() -> None:
    why = WhyCold(ColdCause.GPU, "module x opened CUDA")
    bench = held()
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    bench.started(why_cold=why)
    assert bench.observed.begun == WorkerStarts(2, 0, 0), "none was started"
    bench = Bench()
    bench.receive(Goal.RUN)
    bench.reached()
    bench.started(why_cold=why)
    assert bench.observed.begun == WorkerStarts(0, 0, bench.settings.workers, "", why)


def test_where_one_worker_cannot_stay_all_end_as_ever() -> None:
    bench = Bench().running()
    bench.stays(0)
    bench.receive(Goal.STOP)
    assert (bench.count(LeaveRound), bench.count(Terminate)) == (0, 1)


@pytest.mark.parametrize(
    "goes",
    [lambda bench: bench.left(0), lambda bench: bench.stays(0, able=False), lambda bench: bench.exited(0, -9)],
    ids=["left", "cut off", "ended"],
)
def test_nobody_waits_for_a_worker_that_refuses_when_the_other_one_has_gone(goes: Callable[[Bench], object]) -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.refuses(1)
    bench.advance(0.0)
    assert not bench.count(Terminate), "worker 0 may still leave"
    goes(bench)
    bench.advance(0.0)
    assert bench.count(Terminate) == 1


def test_who_is_told_to_end_is_not_held_though_a_collective_failed_in_it_before() -> None:
    bench = Bench().running()
    bench.stays(0)
    bench.loses_peer(0, LOST_PEER)
    assert (bench.count(LeaveRound), bench.count(Terminate)) == (0, 1), "worker 1 cannot stay"
    assert bench.left(0) == [], "a signal that ends it is on its way"
    bench.exited(0, -15)
    bench.exited(1, -15)
    bench.swept()
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == ()


def test_who_is_told_to_end_is_not_asked_to_leave_after_that() -> None:
    bench = Bench().running()
    bench.stays(0)
    bench.receive(Goal.STOP, planned=True)
    bench.exited(1, -15)
    bench.receive(Goal.STOP)
    assert (bench.count(LeaveRound), bench.count(Terminate)) == (0, 1)


def test_a_failed_worker_whose_connection_is_lost_is_not_held_and_its_end_is_no_second_failure() -> None:
    bench = elastic()
    bench.loses_peer(0, LOST_PEER)
    bench.stays(0, able=False)
    assert bench.left(0) == []
    bench.exited(0, 1)
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.error, failure.followers) == (LOST_PEER, ())


def test_a_connection_that_is_lost_makes_a_worker_one_that_cannot() -> None:
    bench = elastic()
    bench.stays(1, able=False)
    bench.receive(Goal.STOP)
    assert (bench.count(LeaveRound), bench.count(Terminate)) == (0, 1)


def test_a_round_that_begins_from_nothing_has_new_processes() -> None:
    bench = held()
    assert kinds(bench.receive(Goal.RUN, round=2))[:2] == [Dismiss, Probe]
    assert bench.last(Start).stays == ()


def test_a_held_worker_that_ends_is_not_taken_and_is_no_failure() -> None:
    bench = held()
    assert bench.held_exited(0) == []
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == (1,)


def test_a_held_worker_that_cannot_be_reached_any_more_is_replaced_without_a_charge() -> None:
    bench = held()
    assert bench.stays(0, able=False) == [Dismiss((0,))]
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == (1,)
    bench.started(warm=1)
    assert bench.observed.failure is None
    assert bench.observed.begun == WorkerStarts(
        1, 1, 0, "a worker could not be reached any more while it waited for a round"
    )


def test_a_held_worker_that_cannot_be_reached_any_more_is_ended_when_its_round_is_swept() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.left(0)
    assert bench.stays(0, able=False) == []
    bench.left(1)
    assert bench.stays(1, able=False) == []
    assert kinds(bench.swept())[0] is Dismiss
    assert bench.last(Dismiss) == Dismiss((0, 1))
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == ()


def test_a_held_worker_that_cannot_be_reached_any_more_is_ended_before_the_round_begins() -> None:
    bench = held()
    bench.reaches = False
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.stays(1, able=False) == [Dismiss((1,))]
    bench.reached(2)
    assert bench.last(Start).stays == (0,)


def test_a_node_that_ends_ends_those_too_that_it_cannot_reach_any_more() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.left(0)
    bench.stays(0, able=False)
    bench.leave()
    bench.leave()
    bench.exited(1, -15)
    bench.swept()
    assert bench.last(Dismiss) == Dismiss((0,))
    assert isinstance(bench.effects[-1], Exit)


def test_workers_are_not_held_for_long() -> None:
    bench = held()
    bench.advance(HOLD_S - 0.1)
    assert not bench.count(Dismiss)
    bench.advance(0.2)
    assert bench.count(Dismiss) == 1
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == ()


def test_a_node_that_ends_dismisses_them_first() -> None:
    bench = held()
    bench.leave()
    assert kinds(bench.receive(Goal.EXIT, round=1))[-2:] == [Dismiss, Exit]


@pytest.mark.parametrize("how", ["leaves", "exits", "hurries"])
def test_workers_of_a_node_that_ends_are_not_asked_to_stay(how: str) -> None:
    bench = elastic()
    if how == "leaves":
        bench.leave()
        bench.receive(Goal.STOP, planned=True)
    elif how == "exits":
        bench.receive(Goal.EXIT)
    else:
        bench.leave()
        bench.leave()
    assert (bench.count(LeaveRound), bench.count(Terminate)) == (0, 1)


def test_a_node_that_is_asked_to_leave_meanwhile_ends_them() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.left(0)
    bench.leave()
    bench.leave()
    assert bench.count(Terminate) == 1
    bench.exited(1, -15)
    bench.swept()
    assert kinds(bench.effects)[-2:] == [Dismiss, Exit]


def test_a_coordinator_that_is_gone_meanwhile_changes_nothing() -> None:
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.close()
    bench.left(0)
    bench.left(1)
    bench.swept()
    bench.open()
    bench.receive(Goal.RUN, round=2, resume=RESUME)
    assert bench.last(Start).stays == (0, 1)


def test_who_says_that_it_left_without_a_reason_is_in_the_round_still() -> None:
    bench = elastic()
    assert bench.left(0) == []
    assert bench.alive == {0, 1}
