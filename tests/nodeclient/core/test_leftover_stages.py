"""How long leftovers may go on, and what they are sent: law by law, with the time as an argument."""

from signal import SIGKILL, SIGTERM

import pytest

from nodeclient.core import leftover_stages
from nodeclient.core.leftover_stages import (
    BESIDE_S,
    LEAST_S,
    LINGER_S,
    NAMED_MAX,
    UNASKED_SHARE,
    Leftover,
    Leftovers,
    Lingering,
)

STOP_S = 30.0

Sent = list[tuple[float, str, int]]


def play(of: Leftovers, now: float, until: float) -> Sent:
    """Let time pass, deadline by deadline; return what was sent, and when."""
    sent: Sent = []
    while (at := of.next_deadline()) is not None and at <= until:
        now = max(now, at)
        sent += [(now, mark, signum) for mark, signum in of.due(now)]
    return sent


@pytest.mark.parametrize(("stop_timeout_s", "have_s"), [(STOP_S, BESIDE_S), (3.0, 3.0)])
def test_beside_a_later_round_they_are_first_sent_nothing_then_asked_then_killed(
    stop_timeout_s: float, have_s: float
) -> None:
    of = Leftovers(stop_timeout_s)
    of.add(["a"], 100.0)
    assert play(of, 100.0, 1e9) == [(100.0 + UNASKED_SHARE * have_s, "a", SIGTERM), (100.0 + have_s, "a", SIGKILL)]


def test_at_the_end_of_the_node_they_have_as_long_as_workers() -> None:
    of = Leftovers(STOP_S)
    of.add(["a"], 100.0)
    assert of.end(101.0) == 131.0
    assert play(of, 101.0, 1e9) == [(100.0 + UNASKED_SHARE * 31.0, "a", SIGTERM), (131.0, "a", SIGKILL)]


@pytest.mark.parametrize("asks", [Leftovers.stop, Leftovers.record_signal])
@pytest.mark.parametrize(("took_s", "left_s"), [(10.0, 20.0), (STOP_S, LEAST_S)])
def test_workers_and_leftovers_share_the_stop_timeout(asks: object, took_s: float, left_s: float) -> None:
    of = Leftovers(STOP_S)
    assert callable(asks)
    asks(of, 100.0)
    of.add(["a"], 100.0 + took_s)
    of.end(100.0 + took_s)
    assert play(of, 100.0, 1e9)[-1] == (100.0 + took_s + left_s, "a", SIGKILL)


def test_the_stop_of_a_round_does_not_count_for_the_next_one() -> None:
    of = Leftovers(STOP_S)
    of.stop(100.0)
    of.begin_round()
    assert of.end(500.0) == 500.0 + STOP_S


def test_those_that_were_asked_to_end_beside_a_round_have_more_time_when_the_node_ends() -> None:
    of = Leftovers(STOP_S)
    of.add(["a"], 100.0)
    assert play(of, 100.0, 112.0) == [(110.0, "a", SIGTERM)]
    of.end(112.0)
    assert play(of, 112.0, 1e9) == [(142.0, "a", SIGKILL)]


@pytest.mark.parametrize("is_ending", [False, True])
def test_the_second_signal_kills_all_whenever_they_come(is_ending: bool) -> None:
    of = Leftovers(STOP_S)
    of.add(["a"], 100.0)
    of.record_signal(101.0)
    if is_ending:
        of.end(101.0)
    assert of.due(102.0) == []
    of.record_signal(102.0)
    assert of.due(102.0) == [("a", SIGKILL)]
    of.add(["b"], 103.0)
    assert of.due(103.0) == [("b", SIGKILL)]
    assert of.next_deadline() is None


def test_each_worker_has_times_of_its_own_and_those_that_ended_are_sent_nothing() -> None:
    of = Leftovers(STOP_S)
    of.add(["a", "b"], 100.0)
    of.add(["c"], 105.0)
    of.remove("b")
    of.remove("unknown")
    assert [(mark, signum) for _, mark, signum in play(of, 100.0, 1e9)] == [
        ("a", SIGTERM),
        ("a", SIGKILL),
        ("c", SIGTERM),
        ("c", SIGKILL),
    ]


def test_a_notice_names_the_first_of_many() -> None:
    many = [Leftover(pid, "cp", "3") for pid in range(NAMED_MAX + 2)]
    assert leftover_stages.named(many[:1]) == "rank 3: cp (pid 0)"
    assert leftover_stages.named(many) == "rank 3: cp (pid 0), cp (pid 1), cp (pid 2), cp (pid 3) and 2 more"


def test_a_worker_is_overdue_once_and_only_when_its_time_is_over() -> None:
    workers = Lingering()
    assert workers.overdue({}, 0.0) == []
    assert workers.overdue({1: 0}, 10.0) == []
    assert workers.overdue({1: 0, 0: 1}, 20.0) == []
    assert workers.overdue({1: 0, 0: 1}, 10.0 + LINGER_S - 0.1) == []
    assert workers.overdue({1: 0, 0: 1}, 10.0 + LINGER_S) == [(1, 0)]
    assert workers.overdue({1: 0, 0: 1}, 20.0 + LINGER_S) == [(0, 1)]
    assert workers.overdue({1: 0, 0: 1}, 99.0 + LINGER_S) == []
