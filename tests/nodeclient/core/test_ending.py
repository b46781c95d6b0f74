"""The stages of a planned end share one `--stop-timeout`, whatever happens in them."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinatord.protocol.kept_state import Halt
from coordinatord.protocol.messages import Goal
from nodeclient.core.effects import Effect, HaltWorkers, Kill, LeaveRound, Level, Notice, SaveKept, Terminate
from tests.support.bench import SETTINGS, Bench

STOP_TIMEOUT_S = 32.0

STAGES = (HaltWorkers, SaveKept, LeaveRound, Terminate, Kill)

SAVE_WITHIN_S = 25.0


class TimedBench(Bench):
    """A bench that records which stages the workers come to, and when."""

    def __init__(self, stop_timeout_s: float = STOP_TIMEOUT_S) -> None:
        self.stages: list[tuple[type[Effect], float]] = []
        super().__init__(replace(SETTINGS, stop_timeout_s=stop_timeout_s))
        self.running()

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, STAGES):
            self.stages.append((type(effect), self.now))
        super()._carry_out(effect)

    def to_the_end(self) -> list[tuple[type[Effect], float]]:
        """Let a minute pass; return the stages since the beginning."""
        self.advance(60.0)
        return self.stages


def a_bench(stop_timeout_s: float = STOP_TIMEOUT_S) -> TimedBench:
    """Return a node whose workers run, and keep state that takes long to save."""
    bench = TimedBench(stop_timeout_s)
    bench.keep(SAVE_WITHIN_S)
    return bench


def stop(bench: Bench) -> None:
    """Have the coordinator stop the round for a reason that is no error, with a step that all keep."""
    bench.receive(Goal.STOP, planned=True, halt=Halt(None))


def test_each_stage_may_take_half_of_what_is_left() -> None:
    bench = a_bench()
    stop(bench)
    assert bench.to_the_end() == [(HaltWorkers, 0.0), (SaveKept, 16.0), (Terminate, 24.0), (Kill, 32.0)]
    assert "did not end within 32 s and were killed, 8 s after SIGTERM" in bench.last(Notice).text


def test_a_worker_that_hung_is_why_others_did_not_end_in_time_and_the_timeout_is_not() -> None:
    bench = a_bench()
    hung = "the round hung: rank 3 on node n2 stands still"
    bench.receive(Goal.STOP, planned=True, halt=Halt(None), remark=hung)
    bench.to_the_end()
    warnings = [effect.text for effect in bench.effects if isinstance(effect, Notice) and effect.level is Level.WARNING]
    assert len(warnings) == 3, "at once, when its workers come to no step, and when they are killed"
    assert all(text.endswith(hung) for text in warnings)


def test_workers_that_leave_the_round_for_another_one_have_no_more() -> None:
    bench = a_bench()
    bench.stays(0, 1)
    stop(bench)
    reached = [(HaltWorkers, 0.0), (SaveKept, 16.0), (LeaveRound, 24.0), (Terminate, 24.5), (Kill, 32.0)]
    assert bench.to_the_end() == reached


def test_workers_that_abort_nccl_may_take_half_of_what_is_left_however_often_the_node_hears_of_something() -> None:
    bench = TimedBench(stop_timeout_s=4.0)
    bench.stays(0, 1)
    stop(bench)
    bench.aborts(0)
    for _ in range(7):
        bench.advance(0.25)
        bench.receive(Goal.STOP, planned=True)
    assert bench.to_the_end() == [(LeaveRound, 0.0), (Terminate, 2.0), (Kill, 4.0)]


def test_a_node_that_gets_a_signal_counts_from_it() -> None:
    bench = a_bench()
    bench.leave()
    bench.advance(4.0)
    stop(bench)
    assert bench.to_the_end() == [(HaltWorkers, 4.0), (SaveKept, 18.0), (Terminate, 25.0), (Kill, 32.0)]


def test_a_signal_in_the_middle_of_a_planned_end_gives_no_more_time() -> None:
    bench = a_bench()
    stop(bench)
    bench.advance(4.0)
    bench.leave()
    assert bench.to_the_end() == [(HaltWorkers, 0.0), (SaveKept, 16.0), (Terminate, 24.0), (Kill, 32.0)]


def test_a_signal_cuts_a_save_after_a_failure() -> None:
    bench = a_bench(8.0)
    bench.exited(0, 1)
    bench.advance(2.0)
    bench.leave()
    assert bench.to_the_end() == [(SaveKept, 0.0), (Terminate, 6.0), (Kill, 6.5)]


@pytest.mark.parametrize(("stop_timeout_s", "waited_s"), [(STOP_TIMEOUT_S, 10.0), (4.0, 2.0), (0.0, 0.0)])
def test_the_wait_for_a_coordinator_that_is_gone_counts_as_well(stop_timeout_s: float, waited_s: float) -> None:
    bench = a_bench(stop_timeout_s)
    bench.close()
    bench.leave()
    half_s = (stop_timeout_s - waited_s) / 2
    reached = [(SaveKept, waited_s), (Terminate, waited_s + half_s), (Kill, stop_timeout_s)]
    assert bench.to_the_end() == reached


def test_a_coordinator_that_is_gone_in_the_middle_changes_no_deadline() -> None:
    bench = a_bench()
    bench.leave()
    stop(bench)
    bench.advance(12.0)
    bench.close()
    assert bench.to_the_end() == [(HaltWorkers, 0.0), (SaveKept, 16.0), (Terminate, 24.0), (Kill, 32.0)]


def test_a_second_signal_leaves_the_time_of_an_unplanned_end() -> None:
    bench = a_bench()
    stop(bench)
    bench.leave()
    bench.advance(3.0)
    bench.leave()
    assert bench.to_the_end() == [(HaltWorkers, 0.0), (Terminate, 3.0), (Kill, 3.5)]


@pytest.mark.parametrize("stop_timeout_s", [0.0, 0.125, 1.0])
def test_a_short_time_is_kept_as_well(stop_timeout_s: float) -> None:
    bench = a_bench(stop_timeout_s)
    stop(bench)
    assert [kind for kind, _ in bench.to_the_end()] == [HaltWorkers, SaveKept, Terminate, Kill]
    assert bench.stages[-1] == (Kill, stop_timeout_s)


STIMULI: list[Callable[[Bench], object]] = [
    stop,
    lambda bench: bench.receive(Goal.STOP, planned=True),
    lambda bench: bench.receive(Goal.STOP),
    lambda bench: bench.receive(Goal.RUN),
    lambda bench: bench.receive(Goal.WAIT),
    Bench.leave,
    Bench.close,
    Bench.open,
    Bench.degraded,
    Bench.saved,
    lambda bench: bench.saved(put_off=True),
    lambda bench: bench.stays(0, 1),
    lambda bench: bench.aborts(0),
    lambda bench: bench.refuses(1),
    lambda bench: bench.keep(SAVE_WITHIN_S, writes_checkpoints=True),
]
"""What may happen while the workers end, though none of them does."""


@given(
    begin=st.sampled_from([stop, Bench.leave]),
    stimuli=st.lists(st.tuples(st.floats(0.0, STOP_TIMEOUT_S / 4), st.sampled_from(STIMULI))),
    keeps=st.booleans(),
)
@example(begin=Bench.leave, stimuli=[(0.0, Bench.close), (0.0, Bench.open)], keeps=True)
def test_whatever_happens_workers_that_do_not_end_are_killed_in_time(
    begin: Callable[[Bench], object], stimuli: list[tuple[float, Callable[[Bench], object]]], *, keeps: bool
) -> None:
    bench = a_bench() if keeps else TimedBench()
    begin(bench)
    for after_s, stimulus in stimuli:
        if bench.now + after_s < STOP_TIMEOUT_S:
            bench.advance(after_s)
            stimulus(bench)
    [(_, killed_at)] = [stage for stage in bench.to_the_end() if stage[0] is Kill]
    assert killed_at <= STOP_TIMEOUT_S
    assert bench.count(Terminate) == 1
