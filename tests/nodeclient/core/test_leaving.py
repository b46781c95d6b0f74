"""The signal with which workers are asked to end when their node leaves, and the notice about it."""

from __future__ import annotations

import signal

import pytest

from coordinatord.protocol.messages import Goal
from nodeclient.core.agent_settings import LEAVE_WITHIN_S
from nodeclient.core.effects import Notice, Terminate
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
