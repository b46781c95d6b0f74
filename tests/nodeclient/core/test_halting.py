"""The workers of a node come to the step that all workers of the round keep, before a planned end."""

from __future__ import annotations

import dataclasses

import pytest

from coordinatord.protocol.kept_state import Halt
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core.agent_settings import BACK_WITHIN_S
from nodeclient.core.effects import HaltWorkers, Kill, Notice, SaveKept, Terminate
from tests.support.bench import SETTINGS, Bench, kinds

SAVE_S = 0.4

STOP_S = SETTINGS.stop_timeout_s


def halting() -> Bench:
    """Return an agent whose workers stand still after the step that they are in."""
    bench = Bench(dataclasses.replace(SETTINGS, keeps=True)).running()
    bench.keep(SAVE_S)
    assert kinds(bench.receive(Goal.STOP, planned=True, halt=Halt(None))) == [HaltWorkers, Notice]
    assert bench.last(HaltWorkers).step is None
    return bench


def name(bench: Bench, step: int = 7) -> None:
    assert kinds(bench.receive(Goal.STOP, planned=True, halt=Halt(step))) == [HaltWorkers]
    assert bench.last(HaltWorkers).step == step


def test_workers_end_when_they_have_saved_the_step_that_was_named() -> None:
    bench = halting()
    bench.now += 0.1
    name(bench)
    assert not bench.receive(Goal.STOP, planned=True, halt=Halt(7)), "they know it"
    assert kinds(bench.saved()) == [Terminate]
    assert not bench.count(SaveKept)


def test_their_time_to_end_begins_when_they_have_saved() -> None:
    bench = halting()
    name(bench)
    bench.advance(4)
    bench.saved()
    bench.advance(STOP_S - 0.01)
    assert not bench.count(Kill)
    bench.advance(0.02)
    assert bench.count(Kill) == 1


@pytest.mark.parametrize("named", [False, True])
def test_workers_that_do_not_come_to_it_in_time_save_what_they_have(named: bool) -> None:
    bench = halting()
    if named:
        name(bench)
    bench.advance(STOP_S / 2 - 0.01)
    assert not bench.count(SaveKept)
    bench.advance(0.02)
    assert bench.count(SaveKept) == 1
    assert bench.last(Notice).event == "step_not_common"
    bench.advance(SAVE_S)
    assert bench.count(Terminate) == 1
    bench.advance(STOP_S + 0.02)
    assert bench.count(Kill) == 1, "all of it has an end"


def test_a_script_that_writes_a_checkpoint_has_most_of_the_time_for_that() -> None:
    bench = Bench(dataclasses.replace(SETTINGS, keeps=True)).running()
    bench.keep(SAVE_S, writes_checkpoints=True)
    bench.receive(Goal.STOP, planned=True, halt=Halt(None))
    name(bench)
    bench.advance(0.89 * STOP_S)
    assert not bench.count(SaveKept)
    bench.advance(0.02 * STOP_S)
    assert bench.count(SaveKept) == 1
    assert "did not all write their checkpoint of step 7 in time, so they end without it" in bench.last(Notice).text


def test_workers_that_go_on_to_a_step_of_their_own_choice_are_asked_again_after_half_of_their_time() -> None:
    bench = halting()
    bench.saved(put_off=True)
    assert bench.count(Terminate) == 1, "the signal tells them"
    bench.advance(STOP_S / 2 - 0.01)
    assert not bench.count(SaveKept)
    bench.advance(0.02)
    assert bench.last(SaveKept) == SaveKept(planned=True, late=True)
    bench.saved()
    bench.advance(STOP_S / 2)
    assert (bench.count(SaveKept), bench.count(Terminate), bench.count(Kill)) == (1, 1, 1)


def test_workers_that_came_to_their_own_step_are_not_asked_again() -> None:
    bench = halting()
    bench.saved(put_off=True)
    bench.all_exited(0)
    bench.swept()
    bench.advance(STOP_S)
    assert not bench.count(SaveKept)


@pytest.mark.parametrize("named", [False, True])
def test_if_no_step_can_be_kept_by_all_they_save_what_they_have_at_once(named: bool) -> None:
    bench = halting()
    if named:
        name(bench)
    bench.receive(Goal.STOP, planned=True)
    notices = bench.count(Notice)
    bench.advance(0)
    assert bench.count(SaveKept) == 1
    assert bench.count(Notice) == notices, "the report will say why"


def test_a_node_that_leaves_without_the_coordinator_waits_for_no_step_once_that_is_not_back_in_time() -> None:
    bench = Bench(dataclasses.replace(SETTINGS, keeps=True, stop_timeout_s=60.0)).running()
    bench.keep(SAVE_S)
    bench.leave()
    bench.receive(Goal.STOP, planned=True, halt=Halt(None))
    bench.close()
    bench.advance(BACK_WITHIN_S - 0.1)
    assert bench.count(SaveKept) == 0
    bench.advance(0.2)
    assert bench.count(SaveKept) == 1


def test_a_second_signal_ends_them_at_once() -> None:
    bench = halting()
    bench.leave()
    bench.leave()
    assert bench.count(Terminate) == 1


def test_workers_that_end_by_themselves_are_not_waited_for() -> None:
    bench = halting()
    name(bench)
    bench.all_exited(0)
    bench.swept()
    assert bench.observed.phase is Phase.STOPPED
    bench.advance(STOP_S)
    assert bench.count(SaveKept) == bench.count(Terminate) == 0
