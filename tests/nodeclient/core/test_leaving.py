"""A node that leaves: by which signal its workers end, what it says, and how long it waits for a coordinator."""

from __future__ import annotations

import signal

import pytest

from coordinatord.protocol.kept_state import Halt
from coordinatord.protocol.messages import Goal
from nodeclient.core.agent_settings import BACK_WITHIN_S, LEAVE_WITHIN_S
from nodeclient.core.departure import ECHO_S, LeaveSignals
from nodeclient.core.effects import Exit, HaltWorkers, Notice, SaveKept, Terminate
from tests.support.bench import Bench


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_workers_get_the_signal_by_which_their_node_leaves(signum: int) -> None:
    bench = Bench().running()
    bench.leave(signum)
    bench.receive(Goal.STOP, planned=True)
    assert bench.last(Terminate) == Terminate(signum)


def test_workers_get_sigterm_where_no_signal_asked_their_node_to_leave() -> None:
    bench = Bench().running()
    bench.receive(Goal.STOP, planned=True)
    assert bench.last(Terminate) == Terminate(signal.SIGTERM)
    bench.leave(signal.SIGINT)
    assert bench.count(Terminate) == 1, "they are being stopped already"

    bench = Bench().running()
    bench.leave(0)
    bench.advance(LEAVE_WITHIN_S)
    assert bench.last(Terminate) == Terminate(signal.SIGTERM)


def test_a_node_that_leaves_between_two_rounds_is_not_held_by_the_word_about_the_older_one() -> None:
    bench = Bench().running()
    bench.receive(Goal.STOP)
    bench.all_exited(0)
    bench.swept()
    bench.leave(signal.SIGTERM)
    bench.receive(Goal.STOP, reason="sent before the coordinator heard that this node leaves")
    bench.receive(Goal.RUN, round=2)
    bench.advance(LEAVE_WITHIN_S)
    assert bench.count(Terminate) == 2


def test_a_node_says_which_signal_it_leaves_by_and_what_its_workers_have() -> None:
    bench = Bench().running()
    bench.leave(signal.SIGINT)
    assert bench.last(Notice).text == "SIGINT: leaving; workers get up to 10 s to save, a second signal kills them"
    bench = Bench()
    bench.open()
    bench.leave(signal.SIGTERM)
    assert bench.last(Notice).text == "SIGTERM: leaving"


def test_a_signal_that_comes_twice_at_once_counts_once() -> None:
    signals = LeaveSignals()
    assert signals.note(signal.SIGINT, 100.0)
    assert not signals.note(signal.SIGINT, 100.0)
    assert not signals.note(signal.SIGINT, 100.0 + ECHO_S / 2)
    assert signals.note(signal.SIGINT, 100.0 + ECHO_S), "the user insists"
    assert not signals.note(signal.SIGINT, 100.1 + ECHO_S)
    assert signals.note(signal.SIGTERM, 100.2 + ECHO_S)


def keeping() -> Bench:
    """Return a node whose workers keep state, and which has been asked to leave while its coordinator is gone."""
    bench = Bench().running()
    bench.keep(3.0)
    bench.leave()
    bench.close()
    return bench


def test_a_node_that_keeps_state_waits_a_moment_for_a_coordinator_that_is_gone() -> None:
    """It alone could not complete a step of which other nodes have the rest."""
    bench = keeping()
    assert "this node leaves alone if no coordinator is back within 10 s" in bench.last(Notice).text
    bench.advance(BACK_WITHIN_S - 0.1)
    bench.close("Connection refused")
    assert bench.count(SaveKept) == 0, "its workers go on"
    bench.open()
    bench.advance(0.2)
    bench.receive(Goal.STOP, planned=True, halt=Halt(None))
    assert bench.last(HaltWorkers) == HaltWorkers(None)
    bench.advance(LEAVE_WITHIN_S - 0.5)
    assert bench.count(SaveKept) == 0, "the coordinator names the step"


def test_a_node_that_keeps_state_leaves_when_no_coordinator_is_back_in_time() -> None:
    bench = keeping()
    bench.advance(BACK_WITHIN_S - 0.1)
    assert bench.count(SaveKept) == 0
    bench.advance(0.2)
    assert bench.count(SaveKept) == 1


def test_a_node_without_workers_waits_for_the_coordinator_that_has_what_it_keeps_written() -> None:
    bench = Bench().running()
    bench.keep(3.0)
    bench.leave()
    bench.receive(Goal.STOP, planned=True)
    bench.saved()
    bench.all_exited(0)
    bench.swept()
    bench.close()
    bench.advance(BACK_WITHIN_S - 0.1)
    assert not bench.agent.exited
    bench.advance(0.2)
    assert bench.last(Exit).code == 143


def test_a_node_does_not_wait_for_a_coordinator_that_has_been_gone_for_longer() -> None:
    bench = Bench().running()
    bench.keep(3.0)
    bench.close()
    bench.advance(BACK_WITHIN_S)
    bench.leave()
    assert bench.count(SaveKept) == 1


def test_a_second_signal_ends_the_wait_for_a_coordinator() -> None:
    bench = keeping()
    bench.leave()
    assert bench.count(Terminate) == 1


def test_a_coordinator_that_is_back_and_can_decide_nothing_has_the_time_for_a_decision() -> None:
    bench = keeping()
    bench.open()
    bench.degraded()
    bench.advance(LEAVE_WITHIN_S - 0.1)
    bench.degraded()
    assert bench.count(SaveKept) == 0
    bench.advance(0.2)
    assert bench.count(SaveKept) == 1
