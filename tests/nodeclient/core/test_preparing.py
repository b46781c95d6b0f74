"""A node that prepares: it takes part from the start, and has no workers before it is ready."""

from __future__ import annotations

from dataclasses import replace

from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core.effects import Exit, Notice, Probe, SendObserved, Start
from tests.support.bench import SETTINGS, Bench, kinds


def preparing(join_timeout_s: float = SETTINGS.join_timeout_s) -> Bench:
    return Bench(replace(SETTINGS, preloads=True, join_timeout_s=join_timeout_s))


def test_it_joins_at_once_and_says_that_it_prepares_and_since_when() -> None:
    bench = preparing()
    bench.advance(2.0)
    bench.open()
    assert (bench.observed.phase, bench.observed.idle_s) == (Phase.PREPARING, 2.0)
    bench.receive(Goal.WAIT, round=3)
    assert (bench.observed.phase, bench.observed.run, bench.observed.round) == (Phase.PREPARING, "e-1", 3)


def test_that_it_is_ready_is_said_at_once() -> None:
    bench = preparing()
    bench.open()
    bench.receive(Goal.WAIT, round=0)
    effects = bench.prepared()
    assert kinds(effects) == [SendObserved]
    assert bench.last(SendObserved).observed.phase is Phase.IDLE


def test_it_sends_heartbeats_while_it_prepares() -> None:
    bench = preparing()
    bench.open()
    bench.receive(Goal.WAIT, round=0)
    bench.advance(1.01)
    assert (bench.last(SendObserved).observed.phase, bench.last(SendObserved).observed.beat) == (Phase.PREPARING, True)


def test_a_round_that_comes_too_early_waits_for_it() -> None:
    bench = preparing()
    bench.open()
    assert not {Probe, Start} & set(kinds(bench.receive(Goal.RUN)))
    assert {Probe, Start} <= set(kinds(bench.prepared()))


def test_it_ends_as_it_is_told_to() -> None:
    bench = preparing()
    bench.open()
    bench.receive(Goal.EXIT)
    assert bench.last(Exit).message
    assert bench.prepared() == []


def test_it_leaves_when_its_user_wants_that() -> None:
    alone = preparing()
    alone.leave()
    assert alone.last(Exit).code == 128 + 15
    connected = preparing()
    connected.open()
    connected.receive(Goal.WAIT, round=0)
    connected.leave()
    assert connected.last(SendObserved).observed.leaving
    assert not connected.agent.exited, "the coordinator decides"


def test_it_looks_for_a_coordinator_for_the_join_timeout_whether_it_is_ready_by_then_or_not() -> None:
    bench = preparing(join_timeout_s=5.0)
    bench.advance(3.0)
    bench.prepared()
    bench.advance(1.9)
    assert not bench.agent.exited
    bench.advance(0.2)
    assert "no coordinator reached within 5 s" in bench.last(Exit).message
    still = preparing(join_timeout_s=5.0)
    still.advance(5.1)
    assert still.agent.exited


def test_nothing_is_shown_when_it_is_ready() -> None:
    bench = preparing()
    assert not [effect for effect in bench.prepared() if isinstance(effect, Notice)], "the shell says how long it took"
