"""How long workers have to save their state when they are ended, and the notice about those that did not in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from coordinatord.protocol.messages import Goal, Phase, RefusalCode
from coordinatord.protocol.worker_ends import Killed
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S
from nodeclient.core.effects import Kill, Level, Notice, SendObserved, Terminate
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import OUTAGE_GRACE_S

SAVE_S = SETTINGS.stop_timeout_s

KILLED = Notice(
    Level.WARNING,
    f"ranks 0, 1 did not end within {SAVE_S:g} s of SIGTERM and were killed: what they had not saved is lost;"
    " see --stop-timeout",
    "workers_killed",
)


def cut_off(bench: Bench) -> None:
    bench.close()
    bench.advance(OUTAGE_GRACE_S)


def leave(bench: Bench) -> None:
    bench.leave()
    bench.receive(Goal.STOP, planned=True)


def leave_alone(bench: Bench) -> None:
    bench.close()
    bench.leave()


def be_stopped(bench: Bench) -> None:
    bench.receive(Goal.STOP, planned=True)


def be_refused(bench: Bench) -> None:
    bench.refused(RefusalCode.FORGOTTEN, retry=False)


ENDS = [cut_off, leave, leave_alone, be_stopped, be_refused]


@pytest.mark.parametrize("end", ENDS)
def test_workers_that_are_well_have_the_time_to_save(end: Callable[[Bench], None]) -> None:
    bench = Bench().running()
    end(bench)
    assert bench.count(Terminate) == 1
    bench.advance(SAVE_S - 0.01)
    assert not bench.count(Kill)
    bench.advance(0.02)
    assert bench.count(Kill) == 1


@pytest.mark.parametrize("end", ENDS)
def test_whoever_has_not_saved_in_time_is_killed_and_named(end: Callable[[Bench], None]) -> None:
    bench = Bench().running()
    end(bench)
    bench.advance(SAVE_S)
    assert bench.effects.count(KILLED) == 1
    assert bench.observed.killed == Killed((0, 1), 2, SAVE_S)


def test_only_those_that_were_killed_are_named() -> None:
    bench = Bench().running()
    be_stopped(bench)
    bench.exited(0, 0)
    bench.advance(SAVE_S)
    assert "rank 1 did not end within 10 s of SIGTERM and was killed: what it had not" in bench.last(Notice).text


def test_of_many_the_first_few_are_named() -> None:
    bench = Bench(dataclasses.replace(SETTINGS, workers=100)).running()
    be_stopped(bench)
    bench.advance(SAVE_S)
    assert bench.last(Notice).text.startswith("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more did not end")
    assert bench.observed.killed == Killed(tuple(range(8)), 100, SAVE_S)


def test_workers_that_end_in_time_are_not_talked_of() -> None:
    bench = Bench().running()
    be_stopped(bench)
    bench.advance(SAVE_S / 2)
    bench.all_exited(-15)
    bench.swept()
    bench.advance(SAVE_S)
    assert not any("killed" in effect.event for effect in bench.effects if isinstance(effect, Notice))
    assert bench.observed.killed is None


def test_who_is_blocked_in_a_collective_had_nothing_to_save() -> None:
    bench = Bench().running()
    bench.receive(Goal.STOP)
    bench.advance(ABORT_TIMEOUT_S)
    assert bench.count(Kill) == 1
    assert bench.observed.killed is None


def test_a_person_who_does_not_want_to_wait_knows_what_that_means() -> None:
    bench = Bench().running()
    leave(bench)
    bench.leave()
    bench.advance(ABORT_TIMEOUT_S)
    assert bench.count(Kill) == 1
    assert bench.observed.killed is None


def test_the_coordinator_hears_of_it_at_once_and_until_the_next_round() -> None:
    bench = Bench().running()
    be_stopped(bench)
    bench.advance(SAVE_S)
    assert bench.last(SendObserved).observed.killed == Killed((0, 1), 2, SAVE_S)
    bench.all_exited(-9)
    bench.swept()
    observed = bench.last(SendObserved).observed
    assert (observed.phase, observed.killed) == (Phase.STOPPED, bench.observed.killed)
    bench.receive(Goal.RUN, round=2)
    assert bench.observed.killed is None


def test_a_coordinator_that_comes_back_does_not_cut_the_time_of_workers_that_it_was_away_from() -> None:
    bench = Bench().running()
    cut_off(bench)
    bench.open()
    bench.receive(Goal.STOP)
    bench.advance(SAVE_S - 0.01)
    assert not bench.count(Kill)


def test_workers_of_torchrun_are_not_killed_here() -> None:
    bench = Bench(dataclasses.replace(SETTINGS, kills=False)).running()
    be_stopped(bench)
    bench.advance(SAVE_S)
    assert bench.count(Kill) == 1, "torchrun is late, which is said in words of its own"
    assert KILLED not in bench.effects
    assert bench.observed.killed is None
