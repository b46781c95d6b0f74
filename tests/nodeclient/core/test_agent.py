"""What a node does about the coordinator's goals and about local events."""

from __future__ import annotations

import pytest

from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.messages import Goal, Outcome, Phase, Result
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S, LEAVE_WITHIN_S
from nodeclient.core.effects import (
    Exit,
    Kill,
    Level,
    Notice,
    Probe,
    Reconnect,
    SendObserved,
    Start,
    Sweep,
    Terminate,
    Waiting,
)
from nodeclient.core.events import SearchBegan, WorkersStarted
from tests.support.bench import PORT, SETTINGS, Bench, kinds
from tests.support.builders import OUTAGE_GRACE_S, an_assignment

LEFT = Outcome(Result.LEFT, 143, "left the job, as asked")


# A round


def test_a_round_goes_from_assignment_to_success() -> None:
    bench = Bench()
    bench.open()
    assert kinds(bench.receive(Goal.RUN)) == [Notice, Probe, Start]
    start, now = bench.last(Start), bench.observed
    assert (start.run, start.round, start.assignment) == ("e-1", 1, an_assignment())
    assert (now.run, now.round, now.phase) == ("e-1", 1, Phase.STARTING)
    assert kinds(bench.started()) == [SendObserved]
    assert bench.last(SendObserved).observed.phase == Phase.RUNNING
    assert bench.exited(0, 0) == []
    assert kinds(bench.exited(1, 0)) == [Sweep]
    assert kinds(bench.swept()) == [Notice, SendObserved]
    said = bench.last(SendObserved).observed
    assert (said.phase, said.port) == (Phase.SUCCEEDED, PORT + 1)
    assert bench.receive(Goal.EXIT) == [Exit(0, "all workers succeeded", Level.INFO)]
    assert bench.agent.exited


def test_the_processes_of_workers_are_known_while_they_live() -> None:
    bench = Bench()
    bench.open()
    bench.receive(Goal.RUN)
    assert not bench.observed.pids
    bench.submit(WorkersStarted(pids=(4_711, 4_712)))
    assert bench.last(SendObserved).observed.pids == (4_711, 4_712)
    assert bench.exited(0, 0) == []
    assert list(bench.observed.pids) == [0, 4_712]
    bench.exited(1, 0)
    assert list(bench.observed.pids) == []


def test_a_success_is_said_only_when_nothing_is_left_of_the_workers() -> None:
    bench = Bench().running()
    bench.all_exited(0)
    before = bench.observed.phase
    bench.swept()
    assert [before, bench.observed.phase] == [Phase.RUNNING, Phase.SUCCEEDED]


def test_a_failure_ends_the_other_workers_at_once_and_is_reported_with_its_age() -> None:
    bench = Bench().running(assignment=an_assignment(first_rank=6, world_size=8))
    effects = bench.exited(1, -9)
    assert kinds(effects) == [Notice, Terminate, SendObserved]
    assert bench.last(Notice).text == "worker of rank 7 failed: killed by SIGKILL"
    failure = bench.last(SendObserved).observed.failure
    assert failure is not None
    assert (failure.rank, failure.local_rank, failure.exit_code, failure.age_s) == (7, 1, -9, 0.0)
    assert kinds(bench.advance(ABORT_TIMEOUT_S)) == [Kill]
    assert kinds(bench.exited(0, -9)) == [Sweep]
    bench.now += 0.5
    (report,) = bench.swept()
    assert isinstance(report, SendObserved)
    assert report.observed.phase is Phase.FAILED
    assert report.observed.failure is not None
    assert (report.observed.failure.rank, report.observed.failure.age_s) == (7, 1.0)


def test_only_the_first_failure_counts() -> None:
    bench = Bench().running()
    bench.exited(1, 3)
    bench.exited(0, 4)
    bench.swept()
    assert bench.observed.failure is not None
    assert bench.observed.failure.exit_code == 3


def test_the_age_of_a_failure_stays_legal_however_old_it_is() -> None:
    bench = Bench().running()
    bench.all_exited(1)
    bench.swept()
    bench.now += 2.0 * DURATION_S_MAX
    assert bench.observed.failure is not None
    assert bench.observed.failure.age_s == DURATION_S_MAX


def test_a_next_round_voids_what_was_known_of_the_last() -> None:
    bench = Bench().running()
    bench.all_exited(1)
    bench.swept()
    bench.receive(Goal.WAIT)
    assert bench.observed.phase is Phase.IDLE
    bench.receive(Goal.RUN, round=2)
    assert bench.observed.failure is None


def test_a_command_that_cannot_be_started_is_a_failure() -> None:
    bench = Bench()
    bench.open()
    bench.receive(Goal.RUN)
    assert kinds(bench.start_failed(0)) == [Notice, Terminate, Sweep, SendObserved]
    bench.swept()
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.exit_code, failure.message) == (127, "no such file: trian.py")
    assert bench.observed.phase is Phase.FAILED


def test_workers_that_were_started_before_one_that_cannot_be_are_ended() -> None:
    bench = Bench()
    bench.open()
    bench.receive(Goal.RUN)
    assert kinds(bench.start_failed(1)) == [Notice, Terminate, SendObserved]
    assert kinds(bench.exited(0, -15)) == [Sweep]


@pytest.mark.parametrize("ended", [0, 1])
def test_a_start_that_fails_after_the_stop_began_is_no_failure(ended: int) -> None:
    bench = Bench()
    bench.open()
    bench.receive(Goal.RUN)
    bench.receive(Goal.STOP)
    if ended:
        bench.exited(0, -15)
    effects = bench.start_failed(1)
    if not ended:
        assert effects == []
        effects = bench.exited(0, -15)
    assert kinds(effects) == [Sweep]
    bench.swept()
    assert (bench.observed.phase, bench.observed.failure) == (Phase.STOPPED, None)


# A stop


@pytest.mark.parametrize(("planned", "grace"), [(True, SETTINGS.stop_timeout_s), (False, ABORT_TIMEOUT_S)])
def test_workers_get_time_to_save_their_state_only_in_a_planned_stop(planned: bool, grace: float) -> None:
    bench = Bench().running()
    assert kinds(bench.receive(Goal.STOP, planned=planned)) == [Terminate, Notice]
    bench.advance(grace - 0.01)
    assert not bench.count(Kill)
    bench.advance(0.02)
    assert bench.count(Kill) == 1


def test_workers_that_fail_while_they_are_stopped_have_not_failed() -> None:
    bench = Bench().running()
    bench.receive(Goal.STOP, planned=True)
    bench.all_exited(1)
    bench.swept()
    assert (bench.observed.phase, bench.observed.failure) == (Phase.STOPPED, None)


def test_a_stop_may_become_more_urgent_but_not_less() -> None:
    bench = Bench().running()
    bench.receive(Goal.STOP, planned=True)
    bench.receive(Goal.STOP, planned=False)
    bench.receive(Goal.STOP, planned=True)
    bench.advance(ABORT_TIMEOUT_S)
    assert bench.count(Kill) == 1
    bench.advance(60.0)
    assert (bench.count(Terminate), bench.count(Kill)) == (1, 1)


def test_the_next_round_waits_for_the_old_workers_to_be_gone() -> None:
    bench = Bench().running()
    assert kinds(bench.receive(Goal.RUN, round=2))[0] is Terminate
    bench.all_exited(-15)
    assert bench.count(Start) == 1
    effects = bench.swept()
    assert kinds(effects)[0] is Probe
    assert bench.last(Start).round == 2


def test_of_several_rounds_missed_only_the_last_is_run() -> None:
    bench = Bench().running()
    bench.receive(Goal.RUN, round=2)
    bench.receive(Goal.STOP, round=2)
    bench.receive(Goal.RUN, round=3)
    bench.all_exited(-15)
    bench.swept()
    assert (bench.count(Start), bench.last(Start).round) == (2, 3)


def test_a_round_that_ended_before_it_began_here_is_confirmed_and_never_run() -> None:
    bench = Bench()
    bench.open()
    (report, *_) = bench.receive(Goal.STOP, round=5)[-1:]
    assert isinstance(report, SendObserved)
    assert (report.observed.round, report.observed.phase) == (5, Phase.STOPPED)
    bench.receive(Goal.RUN, round=5)
    bench.receive(Goal.RUN, round=4)
    assert not bench.count(Start)


def test_the_rounds_of_another_run_are_counted_anew() -> None:
    bench = Bench().running(round=7)
    bench.receive(Goal.RUN, run="e-2", round=1)
    bench.all_exited(-15)
    bench.swept()
    assert (bench.last(Start).run, bench.last(Start).round) == ("e-2", 1)


def test_a_round_is_not_run_twice() -> None:
    bench = Bench().running()
    bench.all_exited(0)
    bench.swept()
    bench.receive(Goal.RUN)
    assert (bench.count(Start), bench.observed.phase) == (1, Phase.SUCCEEDED)


# Waiting


def test_a_reason_to_wait_is_shown_once_with_its_end() -> None:
    bench = Bench()
    bench.open()
    bench.now = 5.0
    bench.receive(Goal.WAIT, round=0, reason="1 of 2", wait_s=10.0)
    assert bench.last(Waiting) == Waiting("1 of 2", 15.0)
    assert Waiting not in kinds(bench.receive(Goal.WAIT, round=0, reason="1 of 2", wait_s=9.0))
    assert bench.receive(Goal.WAIT, round=0, reason="spare")[0] == Waiting("spare", None)


# Contact


def test_news_is_sent_once_and_a_heartbeat_in_any_case() -> None:
    bench = Bench()
    bench.open()
    bench.receive(Goal.WAIT, round=0, heartbeat_s=2.0, lease_s=10.0)
    beats = [effect for effect in bench.advance(7.0) if isinstance(effect, SendObserved)]
    assert [report.observed.beat for report in beats] == [True] * len(beats)
    assert len(beats) == 4  # the first after the default of one second, then as granted


def test_a_coordinator_that_is_silent_for_its_lease_is_looked_for_anew() -> None:
    bench = Bench().running(heartbeat_s=1.0, lease_s=5.0)
    effects = bench.advance(5.0)
    assert effects[-1] == Reconnect("the coordinator has been silent for 5 s") or Reconnect in kinds(effects)
    assert bench.count(Reconnect) == 1


def test_workers_go_on_without_the_coordinator_until_the_outage_grace_is_over() -> None:
    bench = Bench().running()
    bench.close()
    bench.advance(OUTAGE_GRACE_S - 0.1)
    assert not bench.count(Terminate)
    bench.advance(0.2)
    assert bench.count(Terminate) == 1
    assert bench.last(Notice).level is Level.ERROR
    bench.all_exited(-15)
    bench.swept()
    assert (bench.agent.phase, bench.count(Start)) == (Phase.STOPPED, 1)


def test_a_coordinator_that_comes_back_in_time_saves_the_workers() -> None:
    bench = Bench().running()
    for _ in range(3):
        bench.close()
        bench.advance(OUTAGE_GRACE_S - 0.1)
        bench.open()
        bench.receive(Goal.RUN)
    assert not bench.count(Terminate)


def test_a_node_without_workers_looks_for_a_coordinator_until_its_join_timeout() -> None:
    bench = Bench()
    for _ in range(59):
        bench.close("connection refused")
        bench.advance(1.0)
    bench.advance(1.0)
    assert bench.last(Exit) == Exit(
        69, "no coordinator reached within 60 s: connection refused; see --coord and --join-timeout"
    )


def test_the_join_timeout_counts_from_when_the_search_begins() -> None:
    bench = Bench()
    bench.now += 1_000.0  # the node had to be made ready, and the agent got no event meanwhile
    bench.submit(SearchBegan())
    assert bench.agent.next_deadline() == bench.now + SETTINGS.join_timeout_s
    bench.advance(SETTINGS.join_timeout_s - 0.1)
    assert not bench.count(Exit)
    bench.advance(0.2)
    assert bench.last(Exit).code == 69


# Leaving


def test_a_leaving_node_says_so_and_goes_when_it_is_let_go() -> None:
    bench = Bench().running()
    report = bench.leave()[-1]
    assert isinstance(report, SendObserved)
    assert report.observed.leaving
    bench.receive(Goal.STOP, planned=True)
    bench.all_exited(0)
    bench.swept()
    assert bench.receive(Goal.EXIT, outcome=LEFT) == [Exit(143, "left the job, as asked", Level.INFO)]


def test_a_node_that_leaves_by_ctrl_c_says_so_with_its_exit_code() -> None:
    bench = Bench()
    bench.open()
    bench.leave(2)
    bench.receive(Goal.EXIT, outcome=LEFT)
    assert bench.last(Exit).code == 130


def test_a_leaving_node_that_hears_no_decision_stops_its_workers_by_itself() -> None:
    bench = Bench().running()
    bench.leave()
    bench.advance(LEAVE_WITHIN_S)
    assert bench.count(Terminate) == 1
    bench.all_exited(-15)
    bench.swept()
    assert bench.last(Exit) == Exit(143, "left the job", Level.INFO)


def test_a_leaving_node_that_heard_the_decision_waits_to_be_let_go() -> None:
    bench = Bench().running()
    bench.leave()
    bench.receive(Goal.STOP, planned=True)
    bench.advance(8.0)
    bench.all_exited(0)
    bench.swept()
    bench.receive(Goal.STOP, planned=True)
    bench.advance(4.0)
    assert not bench.agent.exited
    bench.receive(Goal.EXIT, outcome=LEFT)
    assert bench.last(Exit).message == "left the job, as asked"


def test_a_node_out_of_touch_leaves_without_asking() -> None:
    bench = Bench()
    bench.close()
    notice, ending = bench.leave()
    assert isinstance(notice, Notice)
    assert (notice.text, ending) == ("SIGTERM: leaving", Exit(143, "left the job", Level.INFO))


def test_a_leaving_node_does_not_look_for_a_coordinator_that_it_lost() -> None:
    bench = Bench().running()
    bench.leave()
    bench.receive(Goal.STOP, planned=True)
    bench.all_exited(0)
    bench.swept()
    bench.close()
    assert bench.agent.exited


def test_to_ask_twice_is_to_leave_at_once() -> None:
    bench = Bench().running()
    bench.leave()
    bench.receive(Goal.STOP, planned=True)
    bench.leave()
    bench.advance(ABORT_TIMEOUT_S)
    assert bench.count(Kill) == 1
    bench.all_exited(-9)
    bench.swept()
    assert bench.last(Exit).code == 143


# The end


def test_a_failed_run_ends_with_its_code_in_an_error() -> None:
    bench = Bench().running()
    bench.receive(Goal.EXIT, outcome=Outcome(Result.FAILED, 137, "worker of rank 3 failed"))
    assert kinds(bench.effects)[-2:] == [Terminate, Notice]
    bench.all_exited(-15)
    bench.swept()
    assert bench.last(Exit) == Exit(137, "worker of rank 3 failed", Level.ERROR)


def test_after_its_end_nothing_moves_it() -> None:
    bench = Bench()
    bench.open()
    bench.receive(Goal.EXIT)
    assert bench.receive(Goal.RUN) == []
    assert bench.advance(1000.0) == []
