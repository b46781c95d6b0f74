"""Who comes last to collectives, by simulated jobs: slow workers, clocks that are apart, noise."""

from collections.abc import Sequence
from random import Random

import pytest
from msgspec.structs import replace

from coordinatord.core.rounds.events import NodeArrivals
from coordinatord.core.watching.lateness import (
    COLLECTIVES_MIN,
    DRIFT,
    Lateness,
    Offset,
    arrival_times,
    better_offset,
    compare_arrivals,
    present_pause,
)
from coordinatord.core.watching.lateness_watch import LatenessWatch
from coordinatord.protocol.arrival_messages import GroupArrivals, WorkerArrivals, pack_ages, unpack_ages

STEP_S = 0.4
BACKWARD = 0.65
"""The part of a step that is backward; the gradients of each bucket are reduced while the next ones are computed."""

ASKED_AT = 1_000.0

LATER_S = 30.0


def arrivals_in(
    steps: int, slow: dict[int, float], *, ranks: int = 4, buckets: int = 4, noise: float = 0.01
) -> list[list[float]]:
    """Return when each rank arrives in each collective of a DDP training that ends at `ASKED_AT`."""
    random = Random(steps)  # noqa: S311 - a simulation
    times: list[list[float]] = [[] for _ in range(ranks)]
    now = 0.0
    for _ in range(steps):
        for rank, own in enumerate(times):
            at = now + STEP_S * (1 - BACKWARD) * random.uniform(1 - noise, 1 + noise)
            for _ in range(buckets):
                at += STEP_S * BACKWARD / buckets * slow.get(rank, 1.0) * random.uniform(1 - noise, 1 + noise)
                own.append(at)
        now = max(own[-1] for own in times) + 0.001
    return [[ASKED_AT - now + at for at in own] for own in times]


def answers_of(
    times: list[list[float]],
    *,
    clocks: tuple[float, ...] = (),
    error_s: float = 0.0001,
    per_node: int = 1,
    first: int = 1,
) -> list[NodeArrivals]:
    """Return what the nodes of these ranks answer, each with its own clock."""
    nodes = []
    for index in range(0, len(times), per_node):
        workers = tuple(
            WorkerArrivals(rank, (GroupArrivals("default_pg", first, pack_ages(ASKED_AT - at for at in times[rank])),))
            for rank in range(index, min(index + per_node, len(times)))
        )
        number = index // per_node
        clock = clocks[number] if clocks else 50.0 * number
        nodes.append(NodeArrivals(f"n{number + 1}", ASKED_AT, error_s, clock, workers))
    return nodes


def lateness(told: list[NodeArrivals], step_s: float | None = STEP_S) -> Lateness:
    watch = LatenessWatch()
    watch.record(told, step_s, ASKED_AT)
    assert watch.lateness is not None
    return watch.lateness


@pytest.mark.parametrize("buckets", [1, 2, 5])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_a_rank_whose_backward_takes_a_tenth_longer_is_named_within_50_steps(ranks: int, buckets: int) -> None:
    found = lateness(answers_of(arrivals_in(200 // max(4, buckets), {1: 1.1}, ranks=ranks, buckets=buckets)))
    assert found.laggard is not None
    assert (found.laggard.rank, found.laggard.node) == (1, "n2")
    assert found.laggard.last_share > 0.9
    assert found.laggard.late_s == pytest.approx(0.1 * BACKWARD * STEP_S, rel=0.15), "the last bucket's is the step's"
    assert found.factor == pytest.approx(STEP_S / (STEP_S - found.laggard.late_s))


@pytest.mark.parametrize("ranks", [2, 3, 16])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.2])
def test_nobody_is_named_where_all_are_equally_fast(ranks: int, noise: float) -> None:
    found = lateness(answers_of(arrivals_in(50, {}, ranks=ranks, noise=noise)))
    assert found.laggard is None
    assert found.factor == 1
    assert sum(worker.last_share for worker in found.ranks) == pytest.approx(1)


def test_the_first_of_the_ranks_is_not_slow_though_it_always_waits() -> None:
    found = lateness(answers_of(arrivals_in(50, {0: 1.1, 1: 1.1, 2: 1.1})))
    assert {worker.rank for worker in found.ranks if worker.last_share == 0} == {3}
    assert found.laggard is None, "three of four are as slow as the job is"


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_slow_node_is_named_where_its_workers_take_turns(nodes: int) -> None:
    slow = dict.fromkeys(range(4, 8), 1.1)
    assert (found := lateness(answers_of(arrivals_in(50, slow, ranks=4 * nodes), per_node=4)).laggard) is not None
    assert (found.node, found.rank) == ("n2", None)
    assert found.late_s == pytest.approx(0.1 * BACKWARD * STEP_S, rel=0.2)


def test_a_node_with_most_of_the_workers_is_not_named_for_that() -> None:
    times = arrivals_in(50, {}, ranks=8, noise=0.1)
    first, second = answers_of(times[:7], per_node=7), answers_of(times[7:])
    [alone] = second
    alone = replace(alone, node="n2", workers=(replace(alone.workers[0], rank=7),), clock_s=50.0)
    assert lateness([*first, alone]).laggard is None


def test_offsets_of_clocks_are_no_lateness_and_what_they_hide_is_not_named() -> None:
    times = arrivals_in(50, {1: 1.05})
    assert (laggard := lateness(answers_of(times)).laggard) is not None
    assert laggard.rank == 1
    vague = lateness(answers_of(times, error_s=0.02))
    assert vague.laggard is None, "20 ms to either side hide 13 ms"
    on_one_host = lateness(answers_of(times, error_s=0.02, per_node=4))
    assert on_one_host.laggard is not None, "its workers share a clock"


def test_only_collectives_that_all_have_told_of_are_compared() -> None:
    times = arrivals_in(50, {2: 1.1})
    told = answers_of(times)
    [early] = answers_of([times[0][:-30]])
    [late] = answers_of([times[3][120:]], first=121)
    late = replace(late, node="n4", workers=(replace(late.workers[0], rank=3),), clock_s=150.0)
    found = lateness([early, *told[1:3], late])
    assert found.laggard is not None
    assert found.laggard.rank == 2


@pytest.mark.parametrize(("last", "rank"), [(11, None), (14, 1)])
def test_one_of_two_is_not_named_for_a_share_that_chance_explains(last: int, rank: int | None) -> None:
    """One of two equally fast workers is last in 11 of 16 collectives in a fifth of all cases."""
    first = [float(number) for number in range(COLLECTIVES_MIN)]
    second = [at + (0.05 if at < last else -0.05) for at in first]
    laggard = lateness(answers_of([first, second])).laggard
    assert (laggard and laggard.rank) == rank


def test_a_node_is_compared_with_those_in_its_groups_only() -> None:
    noisy, calm = (arrivals_in(50, {}, ranks=2, noise=noise) for noise in (0.3, 0.001))
    [one], [other] = answers_of(noisy, per_node=2), answers_of(calm, per_node=2)
    elsewhere = [
        WorkerArrivals(rank, tuple(replace(group, group="default_pg 2") for group in worker.groups))
        for rank, worker in enumerate(other.workers, start=2)
    ]
    assert lateness([one, replace(other, node="n2", workers=tuple(elsewhere))]).laggard is None


def test_too_little_is_not_compared() -> None:
    few = [own[: COLLECTIVES_MIN - 1] for own in arrivals_in(50, {1: 2.0})]
    alone = arrivals_in(50, {}, ranks=1)
    nothing: list[list[float]] = [[], []]
    for times in (few, alone, nothing):
        watch = LatenessWatch()
        watch.record(answers_of(times), STEP_S, ASKED_AT)
        assert watch.lateness is None


def test_a_rank_of_several_groups_counts_by_the_one_in_which_it_is_the_latest() -> None:
    times = arrivals_in(50, {1: 1.1})
    told = []
    for answer in answers_of(times):
        [worker] = answer.workers
        pair = replace(worker.groups[0], group=f"mesh_tp {worker.rank // 2}")
        told.append(replace(answer, workers=(replace(worker, groups=(worker.groups[0], pair)),)))
    found = lateness(told)
    assert len(found.ranks) == 4
    assert found.laggard is not None
    assert found.laggard.rank == 1


def test_without_steps_the_lateness_is_that_of_a_collective() -> None:
    found = lateness(answers_of(arrivals_in(50, {1: 1.1}, buckets=1)), None)
    assert found.laggard is not None
    assert found.laggard.late_s == pytest.approx(0.1 * BACKWARD * STEP_S, rel=0.15)
    assert found.factor == 1, "nobody knows how long a step is"


def test_looks_that_agree_are_counted() -> None:
    watch = LatenessWatch()
    slow, other, fast = (answers_of(arrivals_in(50, slow)) for slow in ({1: 1.1}, {2: 1.1}, {}))
    counted = []
    for told in (slow, slow, slow, other, slow, fast, slow, []):
        watch.record(told, STEP_S, ASKED_AT)
        counted.append(watch.agreeing)
    assert counted == [1, 2, 3, 1, 1, 0, 1, 0]
    watch.clear()
    assert watch.lateness is None


def test_the_more_exact_offset_is_kept_until_its_clock_may_have_drifted() -> None:
    exact = Offset(10.0, 0.0002, 0.0)
    vague = NodeArrivals("n1", LATER_S + 10.001, 0.01, LATER_S, ())
    assert better_offset(exact, vague) is exact
    later = replace(vague, answered_at=vague.answered_at + 200, clock_s=vague.clock_s + 200)
    assert exact.error_at(later.answered_at) > 0.01
    assert better_offset(exact, later).error_s == 0.01
    assert better_offset(None, vague).shift_s == pytest.approx(10.001)


def test_an_offset_that_a_new_answer_rules_out_counts_no_more() -> None:
    known = Offset(10.0, 0.0002, 0.0)
    restarted = NodeArrivals("n1", 20.0, 0.01, 1.0, ())
    assert better_offset(known, restarted).shift_s == pytest.approx(19.0)


def test_an_old_offset_is_as_wrong_as_its_clock_may_have_drifted() -> None:
    offset = Offset(10.0, 0.001, 0.0)
    [told] = answers_of(arrivals_in(10, {}, ranks=1))
    [(_, arrival)] = arrival_times(told, offset, 100.0)
    assert arrival.error_s == pytest.approx(0.001 + 100 * DRIFT)


def test_ages_survive_the_way() -> None:
    ages = [3_600.25, 1.000001, 0.0]
    assert unpack_ages(pack_ages(ages)) == ages
    assert unpack_ages(pack_ages([-1.0, 1e9])) == [0.0, (2**32 - 1) / 1e6], "none is outside of what 4 bytes hold"
    assert unpack_ages(pack_ages(ages) + b"xyz") == ages
    assert compare_arrivals([], STEP_S) is None


class Named(str):
    """The name of a node; it counts how often it is looked at as one among others."""

    __slots__ = ()
    looked_at = 0

    def __hash__(self) -> int:
        Named.looked_at += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Named.looked_at += 1
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def test_the_work_of_a_look_does_not_grow_with_the_square_of_the_nodes() -> None:
    """A round may have thousands, and all heartbeats wait for the end of a look. Here each node is its own group."""
    nodes, pairs = 100, []
    for number, told in enumerate(answers_of(arrivals_in(20, {}, ranks=2 * nodes), per_node=2)):
        groups = [replace(worker.groups[0], group=f"pair {number}") for worker in told.workers]
        own = (replace(worker, groups=(group,)) for worker, group in zip(told.workers, groups, strict=True))
        pairs.append(replace(told, node=Named(told.node), workers=tuple(own)))
    Named.looked_at = 0
    found = lateness(pairs)
    assert found.laggard is None
    assert Named.looked_at < 20 * 2 * nodes


Groups = Sequence[Sequence[float]]


def at_rest(*workers: Groups) -> bool | None:
    """Judge by how long ago each worker came to the last collectives of each of its groups."""
    told = tuple(
        WorkerArrivals(
            rank, tuple(GroupArrivals(f"gloo {name}", 1, pack_ages(ages)) for name, ages in enumerate(groups))
        )
        for rank, groups in enumerate(workers)
    )
    pause = present_pause([NodeArrivals(f"n{worker.rank}", 0.0, 0.0, 0.0, (worker,)) for worker in told])
    return None if pause is None else pause.is_rest


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        pytest.param([10.0], True, id="ten seconds are long"),
        pytest.param([9.9], False, id="less than ten seconds are not"),
        pytest.param([23.0, 22.0, 20.0], True, id="ten times the longest pause"),
        pytest.param([22.0, 21.0, 19.0], False, id="less than ten times the longest pause"),
        pytest.param([60.0, 40.0], True, id="twice a pause that was long itself"),
        pytest.param([59.0, 39.0], False, id="less than twice a pause that was long itself"),
        pytest.param([], None, id="nobody tells"),
    ],
)
def test_workers_are_at_rest_when_they_come_to_none_for_much_longer_than_is_usual(
    ages: list[float], expected: bool | None
) -> None:
    assert at_rest([ages]) is expected


def test_the_worker_counts_that_came_last() -> None:
    assert at_rest([[90.0]], [[]], [[3.0, 2.0]]) is False
    assert at_rest([[90.0]], [[50.0, 49.0]]) is True


def test_a_worker_comes_to_collectives_of_several_groups() -> None:
    assert at_rest([[20.0, 12.0], [16.0]]) is False, "four seconds are usual"
    assert at_rest([[60.0, 52.0], [56.0]]) is True
