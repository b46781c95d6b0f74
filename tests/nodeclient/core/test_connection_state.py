"""What a node reports and does about a coordinator that refuses it, is out of reach, or lets it in."""

from __future__ import annotations

import dataclasses

import pytest

from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.messages import Goal, Phase, RefusalCode, Refused
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S
from nodeclient.core.connection_state import HEARTBEAT_S
from nodeclient.core.effects import (
    Effect,
    Exit,
    Kill,
    Level,
    Notice,
    Reconnect,
    SendObserved,
    Start,
    Sweep,
    Terminate,
    Waiting,
)
from nodeclient.core.events import SessionOpened, TurnedAway
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import OUTAGE_GRACE_S

CONNECTED = Notice(Level.INFO, "connected to the coordinator at coordinator:29400", "connected")


def texts(effects: list[Effect]) -> list[str]:
    """Return the notices to the user."""
    return [
        effect.text if isinstance(effect, Notice) else effect.reason
        for effect in effects
        if isinstance(effect, Notice | Waiting)
    ]


# Let in


def test_a_node_says_that_it_is_connected_once_it_is_let_in() -> None:
    bench = Bench()
    assert texts(bench.open()) == []
    assert CONNECTED in bench.receive(Goal.WAIT, round=0)
    assert CONNECTED not in bench.receive(Goal.WAIT, round=0)
    assert bench.effects.count(CONNECTED) == 1


def test_a_node_that_comes_back_says_so_again() -> None:
    bench = Bench().running()
    bench.close()
    bench.open()
    bench.receive(Goal.RUN)
    assert bench.effects.count(CONNECTED) == 2


def test_a_node_that_comes_back_says_for_how_long_it_has_had_no_workers() -> None:
    bench = Bench().running(outage_grace_s=7.0)
    bench.close()
    bench.advance(7.0)
    bench.now += 2.0
    assert bench.observed.idle_s == 0.0, "they are ending"
    bench.all_exited(-15)
    bench.swept()
    bench.now += 4.0
    assert (bench.observed.phase, bench.observed.idle_s) == (Phase.STOPPED, 4.0)
    bench.now += 2 * DURATION_S_MAX
    assert bench.observed.idle_s == DURATION_S_MAX


def test_a_refusal_that_may_pass_is_no_connection_and_is_said_once() -> None:
    bench = Bench()
    for _ in range(5):
        bench.open()
        bench.refused(retry=True)
        bench.close("no room")
        bench.advance(1.0)
    assert texts(bench.effects) == ["not let in by coordinator:29400: no room"]
    bench.open()
    assert CONNECTED in bench.receive(Goal.WAIT, round=0)


def test_a_node_whose_token_is_wrong_ends_at_once_and_says_that_it_was_not_let_in() -> None:
    bench = Bench()
    bench.refused(RefusalCode.FORBIDDEN, "tok cannot be read: No such file or directory", retry=False)
    assert bench.last(Exit) == Exit(77, "not let in: tok cannot be read: No such file or directory")


def test_a_node_whose_token_may_become_right_says_how_long_that_takes_at_most() -> None:
    bench = Bench()
    bench.submit(TurnedAway(Refused(RefusalCode.FORBIDDEN, "the token is not known here", retry=True), 4.0))
    assert bench.last(Waiting).until == bench.now + 4.0
    bench.close("Connection refused")
    assert bench.last(Waiting).until == bench.now + SETTINGS.join_timeout_s


def test_a_node_that_was_let_in_before_waits_for_a_token_that_is_not_wrong() -> None:
    bench = Bench().running()
    bench.close()
    bench.refused(RefusalCode.FORBIDDEN, "the token a was revoked", retry=False)
    bench.close("the token a was revoked")
    assert not bench.agent.exited
    limit = bench.last(Waiting)
    assert (limit.reason, limit.level) == ("not let in: the token a was revoked", Level.WARNING)
    bench.open()
    assert CONNECTED in bench.receive(Goal.RUN, round=1)


def test_a_node_that_is_turned_away_again_and_again_gives_up_as_well() -> None:
    bench = Bench()
    for _ in range(int(SETTINGS.join_timeout_s)):
        bench.open()
        bench.refused(retry=True)
        bench.close("no room")
        bench.advance(1.0)
    assert bench.last(Exit) == Exit(69, "not let in within 60 s: no room")


def test_a_node_that_is_kept_out_as_drained_until_it_gives_up_was_refused() -> None:
    bench = Bench()
    bench.open()
    bench.refused(RefusalCode.DRAINED, "a drained by alice", retry=True)
    bench.close("a drained by alice")
    bench.advance(SETTINGS.join_timeout_s)
    assert bench.last(Exit) == Exit(75, "not let in within 60 s: a drained by alice")


def test_a_node_gives_up_with_both_reasons_where_the_coordinator_that_refused_it_is_gone_since() -> None:
    bench = Bench()
    bench.open()
    bench.refused(RefusalCode.DRAINED, "a drained by alice", retry=True)
    bench.close("a drained by alice")
    bench.close("Connection refused")
    bench.advance(SETTINGS.join_timeout_s)
    assert bench.last(Exit) == Exit(69, "not let in within 60 s: a drained by alice; and then: Connection refused")


def test_a_node_that_was_let_in_since_it_was_refused_gives_up_without_a_word_of_that() -> None:
    bench = Bench()
    bench.open()
    bench.refused(RefusalCode.DRAINED, "a drained by alice", retry=True)
    bench.close("a drained by alice")
    bench.open()
    bench.receive(Goal.WAIT)
    bench.close("Connection refused")
    bench.advance(SETTINGS.join_timeout_s)
    assert bench.last(Exit).message.startswith("no coordinator reached within 60 s: Connection refused; see --coord")


def test_a_worker_that_failed_before_its_node_was_kept_out_is_what_the_node_ends_with() -> None:
    bench = Bench().running()
    bench.close()
    bench.exited(0, 3)
    bench.all_exited(-15)
    bench.swept()
    bench.open()
    bench.refused(RefusalCode.DRAINED, "a drained by alice", retry=True)
    bench.advance(SETTINGS.join_timeout_s)
    assert bench.last(Exit).code == 3
    assert bench.last(Exit).message.endswith("could not be reported: not let in within 60 s: a drained by alice")


# Out of reach


def test_of_two_coordinators_that_are_down_each_reason_is_said_once_in_an_outage() -> None:
    bench = Bench()
    troubles = ["a: Connection refused", "b: no answer within 5 s"]
    for _ in range(10):
        for trouble in troubles:
            bench.close(trouble)
            bench.advance(1.0)
    assert texts(bench.effects) == [f"looking for the coordinator: {trouble}" for trouble in troubles]


def test_in_the_next_outage_the_reasons_are_said_again() -> None:
    bench = Bench().running()
    troubles = ["a: Connection refused", "b: Connection refused"]
    for _ in range(2):
        bench.close("connection reset")
        before = len(bench.effects)
        for _ in range(3):
            for trouble in troubles:
                bench.close(trouble)
        assert texts(bench.effects[before:]) == [f"looking for the coordinator: {trouble}" for trouble in troubles]
        bench.open()
        bench.receive(Goal.RUN)


def test_reasons_that_are_never_the_same_do_not_fill_a_log() -> None:
    bench = Bench(SETTINGS)
    for number in range(1000):
        bench.close(f"error {number}")
    assert len(texts(bench.effects)) < 100


def test_the_last_reason_is_what_a_node_gives_up_with() -> None:
    bench = Bench()
    for trouble in ("first", "second", "first"):
        bench.close(trouble)
    bench.advance(SETTINGS.join_timeout_s)
    assert bench.last(Exit).message.startswith("no coordinator reached within 60 s: first;")


# Refused for good


@pytest.mark.parametrize(
    ("code", "grace"),
    [
        (RefusalCode.SPEC_DIFFERS, SETTINGS.stop_timeout_s),
        (RefusalCode.FORGOTTEN, SETTINGS.stop_timeout_s),
        (RefusalCode.SUPERSEDED, ABORT_TIMEOUT_S),
    ],
)
def test_workers_of_a_node_that_is_refused_get_time_to_save_unless_others_have_its_place(
    code: RefusalCode, grace: float
) -> None:
    bench = Bench().running()
    bench.refused(code, "another release", retry=False)
    assert bench.count(Terminate) == 1
    bench.advance(grace - 0.01)
    assert not bench.count(Kill)
    bench.advance(0.02)
    assert bench.count(Kill) == 1
    bench.all_exited(-9)
    bench.swept()
    assert bench.last(Exit) == Exit(77, "refused by the coordinator: another release")


def test_a_node_without_workers_that_is_refused_ends_at_once() -> None:
    bench = Bench()
    bench.open()
    assert bench.refused(RefusalCode.VERSION, retry=False) == [Exit(77, "refused by the coordinator: no room")]


# Another version

VERSIONS = "the coordinator supports protocol versions 9 and 8, this node 5: install the same release on all hosts"


def meet_another_version(bench: Bench) -> None:
    bench.open()
    bench.refused(RefusalCode.VERSION, VERSIONS, retry=False)
    bench.close(VERSIONS)


@pytest.mark.parametrize("goal", [Goal.RUN, Goal.WAIT])
def test_a_node_that_was_let_in_takes_another_version_for_an_outage_which_the_old_one_heals(goal: Goal) -> None:
    bench = Bench()
    bench.open()
    bench.receive(goal)
    before = bench.observed
    bench.close()
    for _ in range(5):
        meet_another_version(bench)
        bench.advance(1.0)
    assert texts(bench.effects)[-1] == f"not let in by coordinator:29400: {VERSIONS}"
    bench.open()
    bench.receive(goal)
    assert bench.observed.phase is before.phase
    assert not bench.count(Terminate)
    assert not bench.agent.exited


UNKNOWN = "this coordinator does not know run e-1 of job default"


def meet_a_stranger(bench: Bench) -> bool:
    """Find a coordinator that does not know the run, and say whether the node asked to be refused there."""
    awaits_own = bench.agent.awaits_own(bench.now)
    bench.submit(SessionOpened("stranger:29400"))
    bench.refused(RefusalCode.FORGOTTEN, UNKNOWN, retry=True)
    bench.close(UNKNOWN)
    return awaits_own


def test_a_node_in_a_run_takes_a_coordinator_that_does_not_know_it_for_an_outage() -> None:
    bench = Bench().running()
    bench.close()
    assert meet_a_stranger(bench)
    assert texts(bench.effects)[-1] == f"not let in by stranger:29400: {UNKNOWN}"
    bench.advance(OUTAGE_GRACE_S - 0.01)
    assert meet_a_stranger(bench)
    assert not bench.count(Terminate)
    bench.advance(0.02)
    assert bench.count(Terminate) == 1
    assert meet_a_stranger(bench), "it still has workers of its run"
    bench.all_exited(-15)
    bench.swept()
    assert not meet_a_stranger(bench)


def test_a_node_without_workers_waits_for_its_own_coordinator_as_long() -> None:
    bench = Bench()
    assert not bench.agent.awaits_own(bench.now), "it has no run yet"
    bench.open()
    bench.receive(Goal.WAIT)
    bench.close()
    bench.advance(OUTAGE_GRACE_S - 0.01)
    assert meet_a_stranger(bench)
    bench.advance(0.02)
    assert not meet_a_stranger(bench)


def test_a_node_that_has_succeeded_lets_no_other_coordinator_train_anew() -> None:
    bench = Bench().running()
    bench.all_exited(0)
    bench.swept()
    bench.close()
    bench.advance(OUTAGE_GRACE_S + 1.0)
    assert meet_a_stranger(bench)


def test_a_node_takes_a_coordinator_that_forgets_at_once_unless_it_has_succeeded() -> None:
    bench = Bench(dataclasses.replace(SETTINGS, coordinator_forgets=True)).running()
    bench.close()
    assert not bench.agent.awaits_own(bench.now)
    bench.open()
    bench.receive(Goal.RUN)
    bench.all_exited(0)
    bench.swept()
    bench.close()
    assert meet_a_stranger(bench)


def test_another_version_that_stays_ends_the_workers_after_the_grace_and_the_node_after_its_patience() -> None:
    bench = Bench().running()
    bench.close()
    meet_another_version(bench)
    bench.advance(OUTAGE_GRACE_S - 0.01)
    assert not bench.count(Terminate)
    bench.advance(0.02)
    assert bench.count(Terminate) == 1
    bench.all_exited(-15)
    bench.swept()
    bench.advance(SETTINGS.join_timeout_s)
    assert bench.last(Exit) == Exit(69, f"not let in within 60 s: {VERSIONS}")


# What becomes of the workers meanwhile


def test_whoever_waits_for_the_coordinator_sees_what_becomes_of_the_workers() -> None:
    bench = Bench()
    bench.close("no answer")
    assert bench.last(Waiting) == Waiting("looking for the coordinator: no answer", SETTINGS.join_timeout_s)
    bench.running()
    bench.close("connection reset")
    bench.close("no answer")
    assert bench.last(Waiting) == Waiting("looking for the coordinator: no answer", OUTAGE_GRACE_S, working=True)


# What cannot be ended


def test_a_sweep_that_fails_is_said_and_begun_again() -> None:
    bench = Bench().running()
    bench.receive(Goal.STOP)
    bench.all_exited(0)
    for _ in range(3):
        effects = bench.sweep_failed("process 7 outlives SIGKILL")
        assert effects == [Notice(Level.ERROR, "process 7 outlives SIGKILL", "sweep_failed"), Sweep()]
    assert bench.agent.phase is Phase.STOPPING
    assert bench.observed.held_up == "process 7 outlives SIGKILL"
    bench.receive(Goal.RUN, round=2)
    assert bench.count(Start) == 1, "no round begins before the old one is swept"
    bench.swept()
    assert bench.count(Start) == 2
    assert not bench.observed.held_up


def test_a_node_that_is_asked_once_to_leave_keeps_trying_to_end_all() -> None:
    bench = Bench().running()
    bench.leave()
    bench.receive(Goal.STOP, planned=True)
    bench.all_exited(0)
    assert Sweep(looks_at_gpus=False) in bench.sweep_failed()
    assert not bench.agent.exited


def test_a_node_that_is_asked_twice_to_leave_leaves_what_it_cannot_end() -> None:
    bench = Bench().running()
    bench.leave()
    bench.receive(Goal.STOP, planned=True)
    bench.all_exited(0)
    bench.sweep_failed()
    bench.leave()
    assert bench.sweep_failed("process 7 outlives SIGKILL") == [Exit(71, "process 7 outlives SIGKILL")]
    assert bench.agent.exited


# A coordinator that lives but decides nothing


def test_a_node_that_is_held_keeps_its_workers_and_its_contact_and_says_why_once() -> None:
    bench = Bench().running()
    effects: list[Effect] = []
    for _ in range(30):
        effects += bench.degraded() + bench.advance(1.0)
    assert bench.observed.phase is Phase.RUNNING
    assert bench.count(Reconnect) == 0
    assert texts(effects) == ["the coordinator lives but decides nothing, all stays as it is: the disk is full"]


def test_the_next_time_a_node_is_held_it_says_so_again() -> None:
    bench = Bench().running()
    bench.degraded()
    bench.receive(Goal.RUN)
    assert len(texts(bench.degraded())) == 1


def test_a_node_that_comes_back_and_is_held_is_not_alone_any_more() -> None:
    bench = Bench().running()
    bench.close()
    bench.advance(OUTAGE_GRACE_S - 1.0)
    bench.open()
    bench.degraded()
    bench.advance(4.0)
    assert bench.observed.phase is Phase.RUNNING


def test_workers_go_on_for_the_grace_that_the_coordinator_grants() -> None:
    bench = Bench().running(outage_grace_s=7.0)
    bench.close()
    bench.advance(6.9)
    assert bench.count(Terminate) == 0
    bench.advance(0.2)
    assert bench.count(Terminate) == 1


# The notices


def test_a_round_costs_a_node_two_reports_that_it_runs_and_that_it_has_stopped() -> None:
    bench = Bench()
    bench.open()
    bench.receive(Goal.WAIT, round=0)
    bench.receive(Goal.RUN)
    bench.started()
    bench.receive(Goal.STOP)
    bench.all_exited(-15)
    bench.swept()
    said = [effect.observed.phase for effect in bench.effects if isinstance(effect, SendObserved)]
    assert said == [Phase.RUNNING, Phase.STOPPED]


@pytest.mark.parametrize("goals", [[Goal.WAIT], [Goal.RUN], [Goal.RUN, Goal.STOP]])
def test_what_a_node_does_on_the_way_it_says_with_its_next_heartbeat(goals: list[Goal]) -> None:
    bench = Bench()
    bench.open()
    for goal in goals:
        bench.receive(goal)
    assert bench.count(SendObserved) == 0
    bench.advance(HEARTBEAT_S)
    assert bench.last(SendObserved).observed == dataclasses.replace(bench.observed, beat=True)
