"""When a node is tested with another one, what it reports of that, and that no round waits for it."""

from msgspec.structs import replace

from coordinatord.protocol.messages import Goal, Observed
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from nodeclient.core.effects import RunPairTest, SendObserved
from nodeclient.core.events import DesiredReceived, PairTested, SessionClosed
from tests.support.bench import Bench
from tests.support.builders import a_desired

ORDER = PairOrder(7, 0, "n2", "10.0.0.1", 29501, 10.0)
RESULT = PairResult(7, 50.0, 1000.0)


def told(bench: Bench, order: PairOrder | None, goal: Goal = Goal.WAIT) -> list[RunPairTest]:
    """Tell the node this goal and this test; return what becomes of tests."""
    effects = bench.submit(DesiredReceived(a_desired(goal, round=bench.agent.round, pair=order)))
    return [effect for effect in effects if isinstance(effect, RunPairTest)]


def reported(bench: Bench, result: PairResult) -> list[Observed]:
    """End a test; return what the node reports."""
    effects = bench.submit(PairTested(result))
    return [effect.observed for effect in effects if isinstance(effect, SendObserved)]


def waiting() -> Bench:
    bench = Bench()
    bench.open()
    bench.receive(Goal.WAIT, round=0)
    return bench


def test_a_test_begins_once_and_its_result_is_reported_at_once() -> None:
    bench = waiting()
    assert told(bench, ORDER) == [RunPairTest(ORDER)]
    assert told(bench, ORDER) == []
    [observed] = reported(bench, RESULT)
    assert observed.pair == RESULT


def test_another_test_takes_the_place_of_one_whose_result_no_longer_counts() -> None:
    bench = waiting()
    told(bench, ORDER)
    following = replace(ORDER, number=8)
    assert told(bench, following) == [RunPairTest(following)]
    assert reported(bench, RESULT) == []
    [observed] = reported(bench, replace(RESULT, number=8))
    assert observed.pair == replace(RESULT, number=8)


def test_a_test_that_is_no_longer_wanted_is_ended() -> None:
    bench = waiting()
    told(bench, ORDER)
    assert told(bench, None) == [RunPairTest(None)]
    assert reported(bench, RESULT) == []


def test_a_round_ends_the_test_before_anything_of_it_is_started() -> None:
    bench = waiting()
    told(bench, ORDER)
    first, *others = bench.receive(Goal.RUN)
    assert first == RunPairTest(None)
    assert others


def test_a_node_with_workers_begins_no_test() -> None:
    bench = waiting()
    bench.receive(Goal.RUN)
    bench.started()
    assert told(bench, ORDER) == []


def test_a_test_goes_on_while_the_coordinator_is_out_of_reach() -> None:
    bench = waiting()
    told(bench, ORDER)
    effects = bench.submit(SessionClosed("gone"))
    assert [effect for effect in effects if isinstance(effect, RunPairTest)] == []
    bench.submit(PairTested(RESULT))
    assert bench.agent.observed(0.0, beat=False).pair == RESULT
