"""A signal by which a node leaves, the echo of it, and the wait for a decision."""

import signal
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.kept_state import PersistOrder
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core.agent_settings import BACK_WITHIN_S, LEAVE_WITHIN_S, STAGE_SHARE
from nodeclient.core.effects import Exit, Kill, Level, Notice, SendObserved, Terminate
from nodeclient.core.events import LeaveRequested
from nodeclient.core.leaving import ECHO_S, LeaveSignals
from nodeclient.core.notices import LEFT_UNDECIDED
from tests.support.bench import SETTINGS, Bench


def test_a_signal_that_comes_twice_at_once_counts_once() -> None:
    signals = LeaveSignals()
    assert signals.counts(signal.SIGINT, 100.0)
    assert not signals.counts(signal.SIGINT, 100.0)
    assert not signals.counts(signal.SIGINT, 100.0 + ECHO_S / 2)
    assert signals.counts(signal.SIGINT, 100.0 + ECHO_S), "the user insists"
    assert not signals.counts(signal.SIGINT, 100.1 + ECHO_S)
    assert signals.counts(signal.SIGTERM, 100.2 + ECHO_S)


def test_the_last_line_of_a_node_is_a_warning_if_a_step_is_lost() -> None:
    for remark, level in (("", Level.INFO), ("step 7 is not on the disk: node a: it is full", Level.WARNING)):
        node = Bench()
        node.open()
        node.receive(Goal.EXIT, remark=remark)
        assert node.last(Exit).level is level
        assert not any(isinstance(effect, Notice) and effect.event == "remark" for effect in node.effects), "said once"


def test_a_node_that_leaves_by_itself_says_that_it_has_written_no_step_of_its_workers() -> None:
    node = Bench().running()
    node.keep(1.0)
    node.close()
    node.leave(signal.SIGTERM)
    node.advance(LEAVE_WITHIN_S + BACK_WITHIN_S)
    node.saved()
    node.all_exited(-signal.SIGTERM)
    node.swept()
    left = node.last(Exit)
    assert (left.level, left.message) == (Level.WARNING, f"SIGTERM: {LEFT_UNDECIDED}")


def keeping_node() -> Bench:
    """Return a node whose workers keep state."""
    node = Bench().running()
    node.keep(1.0)
    return node


def stop(node: Bench) -> None:
    """Have the coordinator stop the round of a node whose workers keep state."""
    node.receive(Goal.STOP, planned=True)
    node.saved()
    node.all_exited(-signal.SIGTERM)
    node.swept()


def after_an_order_to_write() -> Bench:
    """Return a node whose round was stopped, and that was told to write the step."""
    node = keeping_node()
    stop(node)
    node.receive(Goal.STOP, planned=True, persist=PersistOrder(1, 4, 1, 1, (), commit=False))
    return node


def after_success() -> Bench:
    """Return a node whose workers have all exited with 0."""
    node = keeping_node()
    node.all_exited(0)
    node.swept()
    return node


def between_rounds() -> Bench:
    """Return a node that waits for the next round; a step of the last one may be on a disk."""
    node = keeping_node()
    stop(node)
    node.receive(Goal.WAIT)
    return node


@pytest.mark.parametrize("bring", [after_an_order_to_write, after_success, between_rounds])
def test_a_node_that_cannot_know_that_a_step_is_lost_does_not_say_so(bring: Callable[[], Bench]) -> None:
    node = bring()
    node.close()
    node.leave(signal.SIGTERM, training_is_over=True)
    node.advance(LEAVE_WITHIN_S + BACK_WITHIN_S)
    left = node.last(Exit)
    assert (left.level, left.message) == (Level.INFO, "SIGTERM: left the job")


def test_an_order_to_write_that_was_sent_before_does_not_make_a_node_that_leaves_wait_for_longer() -> None:
    node = Bench().running()
    node.leave()
    node.receive(Goal.RUN, persist=PersistOrder(1, 4, 1, 1, (), commit=False))
    node.advance(1.0)
    node.degraded()
    node.advance(LEAVE_WITHIN_S - 1.0)
    assert node.count(Terminate) == 1


def test_a_node_without_workers_does_not_wait_for_ever_for_a_coordinator_that_decides_nothing() -> None:
    node = Bench()
    node.open()
    node.receive(Goal.WAIT)
    node.degraded()
    node.leave(signal.SIGTERM)
    node.advance(LEAVE_WITHIN_S - 0.1)
    assert node.count(Exit) == 0
    node.degraded()
    node.advance(0.1)
    assert node.last(Exit).code == 128 + signal.SIGTERM


def test_a_node_that_was_frozen_while_it_left_is_not_cut_off_too() -> None:
    """Two deadlines are over when it goes on, and the act of the first one ends what the second one is about."""
    node = Bench().running()
    node.keep(1.0)
    node.close()
    node.leave()
    node.now += Policy().outage_grace_s + 1.0
    node.advance(0.0)
    node.saved()
    assert node.count(Terminate) == 1
    assert "cut_off" not in [effect.event for effect in node.effects if isinstance(effect, Notice)]


def test_a_node_that_was_frozen_past_the_end_of_its_search_leaves_by_the_signal_that_came_meanwhile() -> None:
    node = Bench()
    node.now += SETTINGS.join_timeout_s + 1.0
    node.leave(signal.SIGTERM)
    node.advance(0.0)
    assert node.last(Exit).code == 128 + signal.SIGTERM


def leaving_after_training(signum: int = signal.SIGTERM) -> Bench:
    """Return a node that was asked to leave when the training of its workers was over."""
    node = Bench().running()
    node.leave(signum, training_is_over=True)
    return node


def reports_leave(node: Bench) -> bool:
    """Return whether the last report of a node says that it leaves."""
    return node.last(SendObserved).observed.leaving


def test_workers_whose_training_is_over_end_by_themselves_and_the_node_succeeds_though_it_was_asked_to_leave() -> None:
    node = leaving_after_training()
    text = "SIGTERM: leaving in 5 s, unless the job succeeds before, since its training is over"
    assert any(isinstance(effect, Notice) and effect.text.startswith(text) for effect in node.effects)
    node.advance(STAGE_SHARE * SETTINGS.stop_timeout_s - 0.1)
    node.all_exited(0)
    node.swept()
    assert node.last(SendObserved).observed.phase is Phase.SUCCEEDED
    assert not reports_leave(node)
    assert node.count(Terminate) == 0
    node.receive(Goal.EXIT)
    assert node.last(Exit).code == 0


def test_a_node_that_has_succeeded_leaves_when_the_others_take_longer_than_it_may_wait() -> None:
    node = leaving_after_training()
    node.all_exited(0)
    node.swept()
    node.advance(STAGE_SHARE * SETTINGS.stop_timeout_s - 0.1)
    assert not reports_leave(node)
    node.advance(0.1)
    assert reports_leave(node)


def test_workers_that_do_not_end_by_themselves_after_their_training_have_the_rest_of_the_time_to_save() -> None:
    node, half_s = leaving_after_training(), STAGE_SHARE * SETTINGS.stop_timeout_s
    node.advance(half_s)
    assert reports_leave(node)
    assert node.count(Terminate) == 0, "the coordinator decides"
    node.receive(Goal.STOP, planned=True)
    assert node.count(Terminate) == 1
    node.advance(half_s - 0.1)
    assert node.count(Kill) == 0
    node.advance(0.1)
    assert node.count(Kill) == 1


@pytest.mark.parametrize("connected", [True, False])
def test_a_node_whose_training_is_over_ends_its_workers_without_a_coordinator_too(connected: bool) -> None:
    node, half_s = leaving_after_training(), STAGE_SHARE * SETTINGS.stop_timeout_s
    if not connected:
        node.close()
    node.advance(half_s - 0.1)
    assert node.count(Terminate) == 0
    node.advance(0.1 + (STAGE_SHARE * half_s if connected else 0.0))
    assert node.count(Terminate) == 1
    node.advance(SETTINGS.stop_timeout_s)
    assert node.count(Kill) == 1


def test_ctrl_c_does_not_wait_for_workers_whose_training_is_over() -> None:
    assert reports_leave(leaving_after_training(signal.SIGINT))


def test_a_second_signal_does_not_wait_for_workers_whose_training_is_over() -> None:
    node = leaving_after_training()
    node.leave(training_is_over=True)
    assert node.last(Terminate) == Terminate(signal.SIGTERM, planned=False)


def test_workers_without_time_to_save_get_none_to_end_by_themselves() -> None:
    node = Bench(replace(SETTINGS, stop_timeout_s=0.0)).running()
    node.submit(LeaveRequested(signal.SIGTERM, training_is_over=True))
    assert reports_leave(node)
    assert "unless" not in node.last(Notice).text


def test_a_node_that_has_succeeded_says_that_it_leaves_before_a_second_signal_ends_it() -> None:
    """Otherwise the coordinator would take it for lost."""
    node = leaving_after_training()
    node.all_exited(0)
    node.swept()
    node.leave()
    report, end = node.effects[-2:]
    assert isinstance(report, SendObserved)
    assert report.observed.leaving
    assert isinstance(end, Exit)


def test_a_node_that_was_asked_to_leave_after_its_training_says_so_once_a_worker_fails() -> None:
    node = leaving_after_training()
    node.exited(0, 1)
    assert node.last(SendObserved).observed.failure is not None
    assert reports_leave(node)


def test_a_node_that_was_asked_to_leave_after_its_training_says_so_once_the_round_is_stopped() -> None:
    node = leaving_after_training()
    node.receive(Goal.STOP)
    assert node.count(Terminate) == 1
    assert reports_leave(node)


def test_the_training_of_the_last_round_puts_nothing_off_while_the_next_one_starts() -> None:
    node = Bench()
    node.open()
    node.receive(Goal.RUN)
    node.leave(training_is_over=True)
    assert reports_leave(node)
