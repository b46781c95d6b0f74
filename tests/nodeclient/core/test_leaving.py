"""A signal by which a node leaves, the echo of it, and the wait for a decision."""

import signal

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.kept_state import PersistOrder
from coordinatord.protocol.messages import Goal
from nodeclient.core.agent_settings import BACK_WITHIN_S, LEAVE_WITHIN_S
from nodeclient.core.effects import Exit, Level, Notice, Terminate
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
