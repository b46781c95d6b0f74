"""Workers that keep state in memory of the node save it before they are asked to end."""

from __future__ import annotations

import dataclasses

import pytest

from coordinatord.protocol.kept_parts import KeptStep
from coordinatord.protocol.kept_state import Resume
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S
from nodeclient.core.effects import (
    Exit,
    Kill,
    Notice,
    Probe,
    Protect,
    Restore,
    SaveKept,
    SendObserved,
    Sweep,
    Terminate,
)
from nodeclient.core.events import KeptChanged
from tests.support.bench import SETTINGS, Bench, kinds
from tests.support.builders import LOST_PEER

SAVE_S = 0.4

KEEPS = dataclasses.replace(SETTINGS, keeps=True)


def keeping() -> Bench:
    bench = Bench(KEEPS).running()
    bench.keep(SAVE_S)
    return bench


@pytest.mark.parametrize("planned", [False, True])
def test_workers_save_what_they_keep_before_they_are_asked_to_end(planned: bool) -> None:
    bench = keeping()
    assert kinds(bench.receive(Goal.STOP, planned=planned)) == [SaveKept, Notice]
    assert bench.last(SaveKept).planned is planned
    bench.now += SAVE_S / 2
    assert kinds(bench.saved()) == [Terminate]
    bench.advance((SETTINGS.stop_timeout_s if planned else ABORT_TIMEOUT_S) - 0.01)
    assert not bench.count(Kill), "their time to end begins when they have saved"
    bench.advance(0.02)
    assert bench.count(Kill) == 1


def test_what_is_protected_no_more_is_known_before_workers_look_for_a_place_to_save_in() -> None:
    assert kinds(keeping().receive(Goal.STOP, planned=True, protected=(KeptStep(1, 8),)))[:2] == [Protect, SaveKept]


def test_the_others_save_when_a_worker_of_the_node_fails() -> None:
    bench = keeping()
    assert kinds(bench.exited(0, -9)) == [Notice, SaveKept, SendObserved]
    assert kinds(bench.saved()) == [Terminate]
    bench.exited(1, -15)
    bench.swept()
    assert bench.observed.phase is Phase.FAILED


def test_workers_that_cannot_save_in_time_are_asked_to_end() -> None:
    bench = keeping()
    bench.receive(Goal.STOP)
    bench.advance(SAVE_S - 0.01)
    assert not bench.count(Terminate)
    bench.advance(0.02)
    assert bench.count(Terminate) == 1
    assert bench.saved() == [], "the answer came too late"
    bench.advance(ABORT_TIMEOUT_S)
    assert bench.count(Kill) == 1


def test_workers_that_end_while_they_save_need_no_signal() -> None:
    bench = keeping()
    bench.receive(Goal.STOP)
    bench.exited(0, 1, LOST_PEER)
    assert kinds(bench.exited(1, 1, LOST_PEER)) == [Sweep]
    assert bench.saved() == []
    bench.advance(2 * SAVE_S)
    assert not bench.count(Terminate)
    bench.swept()
    assert (bench.observed.phase, bench.observed.failure) == (Phase.STOPPED, None)


def test_one_that_fails_by_itself_while_it_saves_is_reported() -> None:
    bench = keeping()
    bench.receive(Goal.STOP)
    bench.exited(0, 1, "ValueError: no")
    assert bench.observed.failure is not None


def test_a_worker_that_fails_while_it_saves_is_a_consequence() -> None:
    bench = keeping()
    bench.exited(0, 3)
    bench.now += 0.1
    bench.exited(1, 1)
    bench.swept()
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.exit_code, [follower.rank for follower in failure.followers]) == (3, [1])


def test_a_person_who_does_not_want_to_wait_need_not() -> None:
    bench = keeping()
    bench.leave()
    bench.receive(Goal.STOP, planned=True)
    assert bench.count(SaveKept) == 1
    assert kinds(bench.leave()) == [Terminate]
    bench.advance(ABORT_TIMEOUT_S)
    assert bench.count(Kill) == 1


def test_workers_are_asked_to_save_once() -> None:
    bench = keeping()
    bench.receive(Goal.STOP)
    bench.receive(Goal.STOP, planned=True)
    bench.receive(Goal.EXIT)
    assert (bench.count(SaveKept), bench.count(Terminate)) == (1, 0)


def test_workers_that_keep_nothing_are_asked_to_end_at_once() -> None:
    bench = Bench(KEEPS).running()
    assert kinds(bench.receive(Goal.STOP)) == [Terminate, Notice]


def test_what_the_last_round_kept_says_nothing_of_the_next() -> None:
    bench = keeping()
    bench.all_exited(1)
    bench.swept()
    bench.receive(Goal.WAIT)
    bench.receive(Goal.RUN, round=2)
    bench.started()
    assert kinds(bench.receive(Goal.STOP, round=2)) == [Terminate, Notice]


def test_a_change_of_what_is_held_is_reported_at_once() -> None:
    bench = keeping()
    assert kinds(bench.submit(KeptChanged())) == [SendObserved]


RESUME = Resume(round=1, step=7, world_size=2, shards=1, sources=(), complete=False)


def test_what_a_round_resumes_from_is_got_ready_while_it_begins() -> None:
    bench = Bench(KEEPS)
    bench.reaches = False
    bench.open()
    assert kinds(bench.receive(Goal.RUN)) == [Notice, Probe, Restore]
    assert bench.last(Restore) == Restore("e-1", 1, None)
    assert not bench.receive(Goal.RUN)


def test_what_becomes_known_later_is_got_then() -> None:
    bench = Bench(KEEPS).running(resume=RESUME)
    assert bench.last(Restore).resume == RESUME
    complete = dataclasses.replace(RESUME, complete=True)
    assert kinds(bench.receive(Goal.RUN, resume=complete)) == [Restore]
    assert bench.last(Restore).resume == complete
    assert not bench.receive(Goal.RUN, resume=None), "the workers do steps"


def test_the_steps_to_protect_are_passed_on_when_they_change() -> None:
    bench = keeping()
    steps = (KeptStep(1, 7),)
    assert kinds(bench.receive(Goal.RUN, protected=steps)) == [Protect]
    assert bench.last(Protect).steps == steps
    assert not bench.receive(Goal.RUN, protected=steps)
    assert not bench.receive(Goal.RUN, protected=None)
    assert kinds(bench.receive(Goal.RUN, protected=())) == [Protect]


def test_a_node_that_ends_protects_no_more() -> None:
    bench = Bench(KEEPS).running()
    bench.receive(Goal.STOP)
    bench.all_exited(0)
    bench.swept()
    assert kinds(bench.receive(Goal.EXIT, protected=(KeptStep(1, 7),)))[-1] is Exit


def test_a_node_that_keeps_nothing_asks_for_nothing() -> None:
    bench = Bench().running(resume=RESUME, protected=(KeptStep(1, 7),))
    assert bench.count(Restore) == bench.count(Protect) == 0
