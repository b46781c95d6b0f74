"""What two looks at the workers show together: a hang is only what stands still in both of them."""

import pytest
from msgspec.structs import replace

from coordinatord.core.watching.look_comparison import (
    compare,
    judge_pair,
    may_be_slow,
    why_inconclusive,
    why_unseen,
)
from coordinatord.hints.hang_verdict import find_hang
from coordinatord.hints.seen_worker import BUSY_BYTES, SeenWorker
from coordinatord.protocol.messages import HangKind
from tests.support.looks import PID, seen


def look(*kinds: str) -> list[SeenWorker]:
    return [seen(f"n{rank + 1}", rank, kind) for rank, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("stands", HangKind.STUCK),
        ("stopped", HangKind.STUCK),
        ("held", HangKind.STUCK),
        ("skipped", HangKind.MISMATCHED),
        ("ended", HangKind.ABSENT),
        ("computes", HangKind.BUSY),
        ("waits", HangKind.NETWORK),
    ],
)
def test_who_stands_still_in_two_looks_is_named(kind: str, verdict: HangKind) -> None:
    first, second = look("waits", "waits", kind), look("waits", "waits", kind)
    assert compare(first, first) is not None
    assert (found := compare(first, second)) is not None
    assert found.kind is verdict
    if verdict is not HangKind.NETWORK:
        assert found.ranks == (2,)


def test_where_the_only_worker_is_stopped_by_a_signal_it_is_said_what_lets_it_go_on() -> None:
    words = f"rank 0 on node n1 has been stopped by a signal: `kill -CONT {PID}` on its host lets it go on"
    assert why_inconclusive(look("stopped")) == words


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (("waits", "waits"), ("further", "further")),
        (("waits", "waits"), ("waits", "further")),
        (("waits", "moves"), ("waits", "waits")),
        (("waits", "waits"), ("waits", "moves")),
        (("waits", "waits"), ("waits", "stands")),
        (("waits", "stands"), ("waits", "waits")),
        (("waits", "held"), ("waits", "stands")),
        (("waits", "waits"), ("waits", "other")),
        (("stands", "stands"), ("stands", "stands")),
        (("connects", "stands"), ("makes_group", "stands")),
        (("connects", "ended"), ("connects", "ended")),
    ],
)
def test_nobody_is_named_while_somebody_gets_on_or_where_nobody_waits(
    before: tuple[str, ...], now: tuple[str, ...]
) -> None:
    assert compare(look(*before), look(*now)) is None


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("silent", "a node cannot be asked where its workers stand"),
        ("unknown", "rank 1 on node n2 cannot be looked at: import workerlib"),
        ("traced", "a debugger holds rank 1 on node n2"),
        ("debugged", "a debugger holds rank 1 on node n2"),
    ],
)
def test_nobody_is_named_where_a_worker_cannot_be_seen(kind: str, why: str) -> None:
    hidden, plain = look("waits", kind), look("waits", "stands")
    assert why_unseen(hidden) == why
    assert compare(hidden, hidden) is None
    assert compare(hidden, hidden) is None
    assert compare(plain, hidden) is None
    assert compare(hidden, plain) is None
    assert why_unseen(plain) == ""


def test_looks_at_other_workers_show_nothing() -> None:
    assert compare(look("waits"), look("waits", "stands")) is None


def test_a_worker_that_gets_on_in_another_group_than_the_one_it_is_shown_in_gets_on() -> None:
    first, second = look("waits", "stands"), look("waits", "stands")
    assert second[0].now is not None
    second[0] = replace(second[0], now=replace(second[0].now, places=b"dp.gloo=57;"))
    assert compare(first, second) is None
    assert compare(second, second) is not None


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        ("waits", True),
        ("saves", True),
        ("runs", True),
        ("stands", False),
        ("stopped", False),
        ("skipped", True),
        ("silent", False),
        ("computes", False),
    ],
)
def test_a_person_who_asks_needs_a_second_look_where_data_may_come_and_go(kind: str, again: bool) -> None:
    looked = look("waits", "waits", kind)
    assert (found := find_hang(looked)) is not None
    assert may_be_slow(found, looked) is again


@pytest.mark.parametrize(
    ("first", "second", "moved", "verdict"),
    [
        (("waits", "waits"), ("waits", "waits"), 0, HangKind.NETWORK),
        (("waits", "waits"), ("waits", "waits"), BUSY_BYTES, None),
        (("waits", "waits"), ("waits", "further"), 0, None),
        (("waits", "waits"), ("waits", "stands"), 0, None),
        (("waits", "waits"), ("waits", "silent"), 0, HangKind.ABSENT),
        (("waits", "saves"), ("waits", "saves"), 0, HangKind.STUCK),
        (("waits", "saves"), ("waits", "saves"), BUSY_BYTES, HangKind.BUSY),
        (("waits", "silent"), ("waits", "silent"), 0, HangKind.ABSENT),
        (("silent", "silent"), ("silent", "silent"), 0, None),
    ],
)
def test_a_second_look_tells_what_is_slow_from_what_hangs(
    first: tuple[str, ...], second: tuple[str, ...], moved: int, verdict: HangKind | None
) -> None:
    later = [
        replace(
            worker, now=None if worker.now is None else replace(worker.now, io_bytes=moved if worker.rank == 1 else 0)
        )
        for worker in look(*second)
    ]
    found = judge_pair(look(*first), later)
    assert (None if found is None else found.kind) is verdict
