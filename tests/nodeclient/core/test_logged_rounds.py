"""Which log files a node may read and delete: those of the rounds in its list, whatever a request names."""

from typing import Any

import pytest
from msgspec import structs

from coordinatord.protocol.log_messages import LogStream, ReadLog
from nodeclient.core.logged_rounds import LoggedRound, NotLoggedError, find, is_in_future, rounds_to_delete

WANTED = ReadLog(1, "e-1", 2, 5, LogStream.STDERR, None, last_bytes=100, last_lines=None, follow=False)


def kept(number: int, run: str = "e-1", node: str = "a", *, at: float = 0.0, failed: bool = False) -> LoggedRound:
    return LoggedRound("host", "job", node, run, number, 4, 2, at or float(number), failed)


def test_a_log_is_found_by_run_round_and_rank_whichever_node_of_the_host_wrote_it() -> None:
    rounds = [kept(1), structs.replace(kept(2), node="b", first_rank=6), kept(2), kept(2, run="e-0")]
    assert find(WANTED, rounds) is rounds[2]
    assert find(structs.replace(WANTED, rank=7), rounds) is rounds[1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rank": 6}, "rank 6 of round 2 was not on this host"),
        ({"round": 3}, "there are no log files of round 3: they were deleted, or none was written"),
        ({"run": "../e-1"}, "there are no log files of round 2: they were deleted, or none was written"),
    ],
)
def test_what_no_node_of_the_host_has_written_is_not_found(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(NotLoggedError) as caught:
        find(structs.replace(WANTED, **changes), [kept(2)])
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("wanted", "rounds", "to_come"),
    [
        ({}, [], True),
        ({}, [kept(1), kept(2, run="e-0")], True),
        ({}, [kept(2)], False),
        ({}, [kept(3)], False),
        ({"follow": False}, [kept(1)], False),
    ],
    ids=["the first of all", "the next", "this", "an earlier one", "nobody follows"],
)
def test_who_follows_may_ask_for_a_round_before_it_begins_here(
    wanted: dict[str, Any], rounds: list[LoggedRound], *, to_come: bool
) -> None:
    assert is_in_future(structs.replace(WANTED, **{"follow": True, **wanted}), rounds) is to_come


PRESENT = kept(4, at=0.5)
"""A round that begins after the clock was set back."""


@pytest.mark.parametrize(
    ("rounds", "keep", "present", "deleted"),
    [
        ([kept(1), kept(2), kept(3)], 2, None, [1]),
        ([kept(1), kept(2), kept(3)], 3, None, []),
        ([kept(1, failed=True), kept(2, failed=True), kept(3), kept(4)], 1, None, [1, 3]),
        ([kept(1, failed=True), kept(2)], 1, None, []),
        ([kept(1), kept(2), kept(2, node="b")], 1, None, [1]),
        ([kept(1), kept(1, node="b"), kept(2)], 1, None, [1, 1]),
        ([kept(9, run="e-0", at=1.0), kept(1, at=2.0)], 1, None, [9]),
        ([], 1, None, []),
        ([kept(1), kept(2), kept(3, at=0.2), PRESENT], 2, PRESENT, [1, 2]),
        ([kept(1, failed=True), kept(2), kept(3, at=0.2, failed=True), PRESENT], 2, PRESENT, [1, 2]),
        ([*(kept(n, run="e-0", at=8.0 + n) for n in (1, 2)), kept(3, at=0.2), PRESENT], 2, PRESENT, [1, 2]),
    ],
    ids=[
        *("oldest", "room", "last failure", "only failure", "nodes share", "all nodes", "older run", "none"),
        *("clock set back", "last failure before that", "older run before that"),
    ],
)
def test_the_newest_rounds_stay_and_the_last_one_that_failed(
    rounds: list[LoggedRound], keep: int, present: LoggedRound | None, deleted: list[int]
) -> None:
    assert [round_.round for round_ in rounds_to_delete(rounds, keep, present)] == deleted
