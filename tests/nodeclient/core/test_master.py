"""No worker is started before the master of its round was seen to answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinatord.protocol.kept_state import Resume
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core.effects import Notice, Probe, SendObserved, Start, Sweep, Terminate
from tests.support.bench import Bench, kinds
from tests.support.builders import an_assignment


def test_workers_are_started_only_when_the_master_answers() -> None:
    bench = Bench()
    bench.reaches = False
    bench.open()
    bench.receive(Goal.RUN)
    assert (bench.count(Start), bench.observed.phase) == (0, Phase.STARTING)
    assert kinds(bench.reached()) == [Start]
    assert bench.reached() == []


def test_a_master_that_does_not_answer_is_a_failure_before_any_worker() -> None:
    bench = Bench()
    bench.reaches = False
    bench.open()
    bench.receive(Goal.RUN, assignment=an_assignment(first_rank=4, world_size=8))
    assert kinds(bench.unreached()) == [Notice, Terminate, Sweep, SendObserved]
    assert bench.last(Notice).text == "the workers cannot be started: it cannot reach 10.0.0.1"
    bench.swept()
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.rank, failure.pid, failure.exit_code) == (4, 0, 69)
    assert (bench.observed.phase, bench.count(Start)) == (Phase.FAILED, 0)


@pytest.mark.parametrize("answers", [Bench.reached, Bench.unreached])
def test_an_answer_that_comes_after_the_stop_is_void(answers: Callable[[Bench], list[object]]) -> None:
    bench = Bench()
    bench.reaches = False
    bench.open()
    bench.receive(Goal.RUN)
    assert Sweep in kinds(bench.receive(Goal.STOP))
    assert answers(bench) == []
    bench.swept()
    assert answers(bench) == []
    assert (bench.observed.phase, bench.count(Start)) == (Phase.STOPPED, 0)


def test_an_answer_of_an_older_round_is_void() -> None:
    bench = Bench()
    bench.reaches = False
    bench.open()
    bench.receive(Goal.RUN)
    bench.receive(Goal.STOP)
    bench.swept()
    bench.receive(Goal.RUN, round=2)
    assert bench.reached(1) == []
    assert kinds(bench.reached(2)) == [Start]


def test_a_round_that_fails_as_the_one_before_says_so_at_once_as_well() -> None:
    bench = Bench()
    bench.reaches = False
    bench.open()
    for number in (1, 2):
        bench.receive(Goal.RUN, round=number)
        assert SendObserved in kinds(bench.unreached(number))
        bench.swept()
        assert bench.last(SendObserved).observed.round == number


@pytest.mark.parametrize(("group_rank", "staying", "gives_way"), [(0, 0, False), (1, 2, False), (1, 1, True)])
def test_the_node_of_rank_0_has_a_head_start_where_others_start_a_process(
    group_rank: int, staying: int, gives_way: bool
) -> None:
    bench = Bench().running()
    bench.stays(0, 1)
    bench.receive(Goal.STOP)
    for local_rank in range(2):
        if local_rank < staying:
            bench.left(local_rank)
        else:
            bench.exited(local_rank, -15)
    bench.swept()
    part = an_assignment(group_rank=group_rank, group_world_size=2, world_size=4)
    bench.receive(Goal.RUN, round=2, resume=Resume(1, 7, 2, 1, (), complete=True), assignment=part)
    assert bench.last(Probe).gives_way == gives_way
