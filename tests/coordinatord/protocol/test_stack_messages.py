"""The stacks of a worker fit a kilobyte and come back as they went; its places and its line of the script are found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

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
    Frame,
    GroupPlace,
    GroupStage,
    StackOrigin,
    Stacks,
    WorkerStacks,
    find_position,
    pack_places,
    pack_stacks,
    place_of,
    unpack_places,
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


WAITS = Collective("TENSOR_MODEL_PARALLEL_GROU 41@12", 42_806, CollectiveState.WAITS, "nccl:_all_gather_base")
DONE = CollectiveState.DONE


@pytest.mark.parametrize(
    ("collective", "place"),
    [
        (WAITS, GroupPlace("41@12.nccl", GroupStage.WAITS_FOR_ALL, 42_806)),
        (replace(WAITS, operation="nccl:broadcast"), GroupPlace("41@12.nccl", GroupStage.WAITS, 42_806)),
        (replace(WAITS, operation="nccl2:all_to_all"), GroupPlace("41@12.nccl2", GroupStage.WAITS, 42_806)),
        (replace(WAITS, state=DONE), GroupPlace("41@12.nccl", GroupStage.DONE, 42_806)),
        (replace(WAITS, operation="nccl:send to 8"), GroupPlace("41@12.nccl", GroupStage.SENDS, 8)),
        (replace(WAITS, operation="nccl:recv from 12"), GroupPlace("41@12.nccl", GroupStage.RECEIVES, 12)),
        (Collective("default_pg", 0, DONE), GroupPlace("default_pg.", GroupStage.DONE, 0)),
        (replace(WAITS, operation="nccl:recv 0<-3"), None),
        (replace(WAITS, state=CollectiveState.MOVES), None),
    ],
)
def test_a_place_is_made_of_what_a_worker_tells(collective: Collective, place: GroupPlace | None) -> None:
    assert place_of(collective) == place


def test_of_a_group_two_collectives_are_told_and_one_exchange() -> None:
    def in_group(operation: str, number: int) -> Collective:
        return replace(WAITS, operation=f"nccl:{operation}", number=number)

    told = ("broadcast", 1), ("broadcast", 2), ("all_reduce", 3), ("barrier", 4), ("recv from 5", 1), ("send to 6", 1)
    packed = pack_places([replace(WAITS, group="first 1"), *(in_group(*each) for each in told)])
    assert packed == b"41@12.nccl?1;41@12.nccl!3;41@12.nccl<5;"
    assert pack_places([in_group(*each) for each in told]) == b"41@12.nccl!3;41@12.nccl<5;", "the first is told apart"


NAMES = st.text(max_size=12) | st.sampled_from(["default_pg", "dp 3@1"])
COLLECTIVES = st.builds(
    Collective, NAMES, st.integers(0, 2**53), st.sampled_from(CollectiveState), st.text(max_size=20)
)


@given(st.lists(COLLECTIVES, max_size=40))
def test_whatever_workers_tell_the_places_keep_to_their_limit(collectives: list[Collective]) -> None:
    packed = pack_places(collectives)
    assert len(packed) <= PLACES_BYTES_MAX
    assert b"".join(f"{p.group}{p.stage}{p.number};".encode() for p in unpack_places(packed)) == packed


@given(st.binary(max_size=PLACES_BYTES_MAX))
def test_whatever_a_node_sends_is_read(packed: bytes) -> None:
    assert all(place.number >= 0 for place in unpack_places(packed))


LIBRARY: tuple[Frame, ...] = (("wait", "threading.py", "359"), ("DataLoader.__next__", "torch/data.py", "733"))
CALL: Frame = ("main", "/srv/train.py", "41")
BEGIN: Frame = ("<module>", "/srv/train.py", "60")
RUN: Frame = ("_run_code", "<frozen runpy>", "88")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        pytest.param((*LIBRARY, CALL, BEGIN), ("DataLoader.__next__", "/srv/train.py", "41"), id="in a library"),
        pytest.param((CALL, BEGIN), CALL, id="in the script itself"),
        pytest.param(
            (
                ("recv", "torch/distributed/distributed_c10d.py", "2740"),
                ("_exception_logger.<locals>.wrapper", "torch/distributed/c10d_logger.py", "83"),
                CALL,
                BEGIN,
            ),
            ("recv", *CALL[1:]),
            id="a decorator is not what the script has called",
        ),
        pytest.param(
            (
                ("Linear.forward", "torch/nn/modules/linear.py", "134"),
                ("DistributedDataParallel.forward", "torch/nn/parallel/distributed.py", "1668"),
                ("_call_impl", "torch/nn/modules/module.py", "1789"),
                ("Module._wrapped_call_impl", "torch/nn/modules/module.py", "1778"),
                CALL,
                BEGIN,
            ),
            ("DistributedDataParallel.forward", *CALL[1:]),
            id="nor is what calls the forward of a module",
        ),
        pytest.param(
            (("wrapper", "lib/x.py", "1"), ("decorate_context", "torch/utils/_contextlib.py", "124"), CALL, BEGIN),
            ("decorate_context", *CALL[1:]),
            id="where nothing else is known, a decorator is better than nothing",
        ),
        pytest.param(
            (*LIBRARY, ("load", "/srv/data/sets.py", "7"), CALL, BEGIN),
            ("DataLoader.__next__", "/srv/data/sets.py", "7"),
            id="in a module below its folder",
        ),
        pytest.param(
            (*LIBRARY, ("load", "/srvx/sets.py", "7"), CALL, BEGIN), ("load", "/srv/train.py", "41"), id="elsewhere"
        ),
        pytest.param(
            (*LIBRARY, CALL, BEGIN, RUN), ("DataLoader.__next__", "/srv/train.py", "41"), id="run as a module"
        ),
        pytest.param(
            (CALL, BEGIN, RUN, ("main", "/opt/bin/start", "3"), ("<module>", "/opt/bin/start", "9")),
            CALL,
            id="run by another program",
        ),
        pytest.param(
            (("make", "/lib/x.py", "2"), ("<module>", "/lib/x.py", "1"), CALL, BEGIN),
            ("<module>", *CALL[1:]),
            id="imports",
        ),
        pytest.param((("...", "", ""), CALL, BEGIN), CALL, id="of what was left out nothing is known"),
        pytest.param(
            (*LIBRARY, ("<module>", "/home/ada/nodeclient/runpy_tests/train.py", "3")),
            ("DataLoader.__next__", "/home/ada/nodeclient/runpy_tests/train.py", "3"),
            id="in folders that are called as what runs scripts",
        ),
        pytest.param(
            (*LIBRARY, ("<module>", "/opt/nodeclient/forkserver/hook/sitecustomize.py", "9")),
            LIBRARY[0],
            id="before the script",
        ),
        pytest.param(LIBRARY, LIBRARY[0], id="no script"),
        pytest.param((), None, id="no frame"),
    ],
)
def test_the_innermost_own_line_is_found_and_what_it_has_called(frames: tuple[Frame, ...], place: Frame | None) -> None:
    assert find_position(frames) == place
