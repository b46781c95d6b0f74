"""The stacks of a worker fit a kilobyte, whatever they are, and come back as they went."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinatord.protocol.codec import encode
from coordinatord.protocol.stack_messages import (
    ELLIPSIS,
    FRAME_MAX,
    PACKED_BYTES_MAX,
    PLACES_BYTES_MAX,
    STACK_BYTES_MAX,
    WAITS_FOR_MAX,
    Collective,
    CollectiveState,
    StackOrigin,
    Stacks,
    WorkerStacks,
    pack_stacks,
    unpack_stacks,
)

MAIN = ("MainThread", ("get (queue.py:1)", "<module> (train.py:41)"))
OTHER = ("pin_memory", ("wait (threading.py:2)",))


def test_short_stacks_come_back_as_they_went() -> None:
    assert unpack_stacks(pack_stacks([MAIN, OTHER])) == (MAIN, OTHER)
    assert unpack_stacks(pack_stacks([])) == ()


def test_of_a_long_stack_both_ends_are_kept() -> None:
    frames = tuple(f"layer_{number} (torch/nn/modules/module.py:{number})" for number in range(60))
    [(name, kept)] = unpack_stacks(pack_stacks([("MainThread", (*frames, "main (train.py:9)"))]))
    assert name == "MainThread"
    assert kept[0] == frames[0]
    assert ELLIPSIS in kept
    assert kept[-1] == "main (train.py:9)"


def test_a_thread_that_does_not_fit_is_left_out_and_not_cut() -> None:
    deep = tuple(f"layer_{number} (torch/nn/modules/module.py:{number})" for number in range(40))
    assert unpack_stacks(pack_stacks([MAIN, ("deep", deep), OTHER])) == (MAIN,)


TEXTS = st.text(max_size=300)


@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=50)), max_size=8))
def test_no_stack_is_larger_than_the_limit(threads: list[tuple[str, list[str]]]) -> None:
    assert len(pack_stacks([(name, tuple(frames)) for name, frames in threads])) <= PACKED_BYTES_MAX


@given(st.binary(max_size=STACK_BYTES_MAX))
def test_whatever_a_node_sends_can_be_shown(packed: bytes) -> None:
    assert all(text.isprintable() for name, frames in unpack_stacks(packed) for text in (name, *frames))


def test_all_that_is_told_of_a_worker_is_less_than_a_kilobyte() -> None:
    frames = tuple(f"function_{number} (torch/nn/modules/module{number}.py:{number})" for number in range(40))
    stands_at, places, waits_for = "x" * FRAME_MAX, b"x" * PLACES_BYTES_MAX, "x" * WAITS_FOR_MAX
    stacks = pack_stacks([("MainThread", frames)], PACKED_BYTES_MAX - len(stands_at) - len(places) - len(waits_for))
    waits = Collective("default_pg", 120_417, CollectiveState.WAITS, "gloo:all_reduce", "25557032 Float", 123.4)
    state, waits_in, bytes_s = "waiting for IO", "folio_wait_bit_common", 10**12
    worker = WorkerStacks(
        *(9_999, StackOrigin.WORKER, stacks, state, waits_in, 12.34, waits, "", 4_000_000, bytes_s, bytes_s, 1_000),
        places=places,
        stands_at=stands_at,
        waits_for=waits_for,
    )
    assert len(encode(Stacks(2**62, (worker,), ""))) < 1_000
