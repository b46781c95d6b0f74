"""Who holds up all others, by where each worker stands: one sentence for each kind of hang."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinatord.hints.hang_verdict import find_hang, notice_of
from coordinatord.hints.seen_worker import SeenWorker
from coordinatord.protocol.messages import HangKind
from coordinatord.protocol.stack_messages import Collective, CollectiveState, StackOrigin, WorkerStacks, pack_stacks

WORLD = 16

LIBRARY = ("wait (threading.py:359)", "get (queue.py:180)", "DataLoader.__next__ (torch/utils/data/dataloader.py:733)")
LOADS = pack_stacks([("MainThread", (*LIBRARY, "main (train.py:41)", "<module> (train.py:60)"))])
CUT = pack_stacks([("MainThread", (*LIBRARY, "...", "main (train.py:41)", "<module> (train.py:60)"))])
COMPUTES = pack_stacks([("MainThread", ("evaluate (train.py:50)", "<module> (train.py:61)"))])
RESTORES = pack_stacks(
    [
        (
            "MainThread",
            (
                "KeepChannel.receive (workerlib/keeping/keep_channel.py:55)",
                "request_state (workerlib/keeping/restoring.py:86)",
                "Context.keep (workerlib/context.py:110)",
                "main (train.py:12)",
                "<module> (train.py:60)",
            ),
        )
    ]
)
REDUCES = pack_stacks(
    [("MainThread", ("all_reduce (torch/c10d.py:9)", "main (train.py:47)", "<module> (train.py:60)"))]
)

WAITS = Collective("default_pg", 1204, CollectiveState.WAITS, "gloo:all_reduce", "8x3 Float", 12.3)
DONE = replace(WAITS, number=1203, state=CollectiveState.DONE)
MOVES = Collective("0", 1203, CollectiveState.MOVES)


def stands(rank: int, collective: Collective | None = WAITS, **changes: Any) -> WorkerStacks:
    worker = WorkerStacks(rank, StackOrigin.WORKER, REDUCES, "sleeping", "futex_do_wait", 0.0, collective, "", 7, 0)
    return replace(worker, **changes)


def seen_worker(rank: int, now: WorkerStacks | None, before: WorkerStacks | None = None) -> SeenWorker:
    return SeenWorker(f"gpu{rank // 8}", rank, now, before)


def job(*others: SeenWorker) -> list[SeenWorker]:
    """Return a job of which all wait but these."""
    known = {other.rank: other for other in others}
    return [known.get(rank) or seen_worker(rank, stands(rank)) for rank in range(WORLD)]


STUCK = stands(5, DONE, stacks=LOADS)
BUSY = stands(5, DONE, stacks=COMPUTES, cpus=1.0, state="running")
THE_OTHERS = "for 12 s; the 15 others wait in all_reduce 1,204"


@pytest.mark.parametrize(
    ("seen", "kind", "sentence"),
    [
        (STUCK, HangKind.STUCK, f"rank 5 on node gpu0 stands in DataLoader.__next__ (train.py:41) {THE_OTHERS}"),
        (
            replace(STUCK, state="stopped", origin=StackOrigin.NONE, stacks=b""),
            HangKind.STUCK,
            f"rank 5 on node gpu0 has been stopped by a signal {THE_OTHERS}",
        ),
        (
            replace(STUCK, state="traced"),
            HangKind.STUCK,
            f"rank 5 on node gpu0 is held by a debugger in DataLoader.__next__ (train.py:41) {THE_OTHERS}",
        ),
        (
            replace(STUCK, origin=StackOrigin.NONE, stacks=b"", collective=None),
            HangKind.STUCK,
            f"rank 5 on node gpu0 stands in the kernel's futex_do_wait {THE_OTHERS}",
        ),
        (
            replace(STUCK, state="waiting for IO"),
            HangKind.STUCK,
            f"rank 5 on node gpu0 waits for a disk in DataLoader.__next__ (train.py:41) {THE_OTHERS}",
        ),
        (
            replace(STUCK, waits_for="the program rsync (process 99)"),
            HangKind.STUCK,
            (
                "rank 5 on node gpu0 waits for the program rsync (process 99) in DataLoader.__next__ (train.py:41) "
                f"{THE_OTHERS}"
            ),
        ),
        (
            replace(STUCK, stacks=RESTORES),
            HangKind.STUCK,
            f"rank 5 on node gpu0 waits for its kept state in Context.keep (train.py:12) {THE_OTHERS}",
        ),
        (BUSY, HangKind.BUSY, f"rank 5 on node gpu0 computes in evaluate (train.py:50) {THE_OTHERS}"),
        (
            replace(STUCK, stacks=CUT),
            HangKind.STUCK,
            f"rank 5 on node gpu0 stands in DataLoader.__next__ (train.py:41) {THE_OTHERS}",
        ),
        (None, HangKind.ABSENT, f"rank 5 on node gpu0 does not answer {THE_OTHERS}"),
        (
            stands(5, None, state=""),
            HangKind.ABSENT,
            "rank 5 on node gpu0 has ended; the 15 others wait in all_reduce 1,204 for 12 s",
        ),
        (
            stands(5, replace(WAITS, operation="gloo:barrier", shape="")),
            HangKind.MISMATCHED,
            "rank 5 on node gpu0 waits in barrier 1,204, where 15 others wait in all_reduce 1,204, for 12 s",
        ),
        (
            stands(5, replace(WAITS, shape="8x4 Float")),
            HangKind.MISMATCHED,
            (
                "rank 5 on node gpu0 waits in all_reduce 1,204 with 8x4 Float, where 15 others wait in "
                "all_reduce 1,204 with 8x3 Float, for 12 s"
            ),
        ),
        (
            stands(5, replace(WAITS, number=1203)),
            HangKind.MISMATCHED,
            "rank 5 on node gpu0 waits in all_reduce 1,203, where 15 others wait in all_reduce 1,204, for 12 s",
        ),
        (
            stands(5, replace(WAITS, group="mesh_tp 3")),
            HangKind.MISMATCHED,
            (
                "rank 5 on node gpu0 waits in all_reduce 1,204 of mesh_tp 3, "
                "where 15 others wait in all_reduce 1,204 of default_pg, for 12 s"
            ),
        ),
        (
            stands(5),
            HangKind.NETWORK,
            (
                "all 16 workers wait in all_reduce 1,204 for 12 s, and it completes for none: "
                "look at the network between nodes gpu0, gpu1"
            ),
        ),
    ],
)
def test_each_kind_of_hang_has_a_sentence(seen: WorkerStacks | None, kind: HangKind, sentence: str) -> None:
    assert (found := find_hang(job(seen_worker(5, seen)))) is not None
    assert (found.kind, found.sentence) == (kind, sentence)
    assert found.ranks == (tuple(range(WORLD)) if kind is HangKind.NETWORK else (5,))


def in_torch(*frames: str) -> WorkerStacks:
    """Return a sample of a worker that stands in these frames of torch, and of which no recorder shows a wait."""
    stacks = pack_stacks([("MainThread", (*frames, "main (train.py:38)", "<module> (train.py:60)"))])
    return stands(0, DONE, stacks=stacks, cpus=1.0, state="running")


C10D = "torch/distributed/distributed_c10d.py"
NEW_GROUP = in_torch(f"_new_process_group_helper ({C10D}:2169)", f"_new_group_with_tag ({C10D}:6056)")


@pytest.mark.parametrize(
    "waits",
    [
        NEW_GROUP,
        replace(NEW_GROUP, collective=None),
        in_torch("_create_c10d_store (torch/distributed/rendezvous.py:199)", f"init_process_group ({C10D}:1892)"),
        in_torch(f"all_reduce (.venv/lib/python3.11/site-packages/{C10D}:3252)"),
        in_torch(f"monitored_barrier ({C10D}:5435)"),
        in_torch(f"all_gather_into_tensor ({C10D}:4402)"),
        in_torch("_verify_param_shape_across_processes (torch/distributed/utils.py:286)"),
        in_torch(
            "OpOverloadPacket.__call__ (torch/_ops.py:1275)",
            "all_reduce (torch/distributed/_functional_collectives.py:180)",
        ),
    ],
)
@pytest.mark.parametrize(("culprit", "does"), [(STUCK, "stands"), (BUSY, "computes")])
def test_who_stands_in_a_wait_of_torch_waits_for_those_who_do_not(
    waits: WorkerStacks, culprit: WorkerStacks, does: str
) -> None:
    looked = [seen_worker(rank, replace(waits, rank=rank)) for rank in range(5)]
    assert (found := find_hang([*looked, seen_worker(5, culprit)])) is not None
    assert found.sentence.startswith(f"rank 5 on node gpu0 {does} in ")
    assert (found.ranks, found.waiting) == ((5,), 5)
    assert (found := find_hang(job(seen_worker(0, waits), seen_worker(5, culprit)))) is not None
    assert found.sentence.startswith(f"rank 5 on node gpu0 {does} in ")
    assert find_hang(looked) is None


def test_where_no_recorder_shows_a_wait_the_line_of_the_script_is_said() -> None:
    found = find_hang([seen_worker(0, NEW_GROUP), seen_worker(1, NEW_GROUP), seen_worker(5, STUCK)])
    assert found is not None
    assert found.sentence == (
        "rank 5 on node gpu0 stands in DataLoader.__next__ (train.py:41); "
        "the 2 others wait in _new_group_with_tag (train.py:38)"
    )


@pytest.mark.parametrize(
    "frame",
    [
        f"_object_to_tensor ({C10D}:3410)",
        "write_data (torch/distributed/checkpoint/filesystem.py:1)",
        "forward (torch/nn/parallel/distributed.py:1)",
        "all_reduce (all_reduce.py:1)",
        f"recv ({C10D}:2799)",
    ],
)
def test_who_stands_elsewhere_in_torch_waits_for_nobody(frame: str) -> None:
    looked = job(seen_worker(5, replace(in_torch(frame), rank=5, cpus=0.0, state="sleeping")))
    assert (found := find_hang(looked)) is not None
    assert (found.kind, found.ranks) == (HangKind.STUCK, (5,))
    assert find_hang([looked[5], seen_worker(6, STUCK)]) is None


def test_who_waits_unrecorded_is_named_if_all_others_wait_or_have_ended() -> None:
    idle = replace(NEW_GROUP, rank=5, cpus=0.0, state="sleeping")
    for other in (stands(6), stands(6, None, state="")):
        assert (found := find_hang(job(seen_worker(5, idle), seen_worker(6, other)))) is not None
        assert (found.kind, found.ranks) == (HangKind.STUCK, (5,))


def test_what_others_wait_for_is_said_of_a_worker_that_has_ended_too() -> None:
    workers = job(seen_worker(5, stands(5, None, state="")))
    assert (found := find_hang(workers)) is not None
    assert notice_of(found, workers) == "waiting for rank 5 on node gpu0, which has ended"


@pytest.mark.parametrize(
    ("now", "kind", "does"),
    [
        (STUCK, HangKind.STUCK, "stands"),
        (replace(STUCK, stacks=COMPUTES), HangKind.BUSY, "is busy"),
        (replace(STUCK, stacks=COMPUTES, state="waiting for IO"), HangKind.BUSY, "waits for a disk"),
        (replace(STUCK, state="running"), HangKind.BUSY, "computes"),
        (replace(STUCK, io_bytes=100_000, state="waiting for IO"), HangKind.BUSY, "reads or writes"),
        (replace(STUCK, stacks=COMPUTES, origin=StackOrigin.SIGNAL), HangKind.STUCK, "stands"),
        (replace(STUCK, io_bytes=100_000, pid=8), HangKind.STUCK, "stands"),
    ],
    ids=[
        "as before",
        "another stack",
        "a disk",
        "waits for a CPU",
        "it has read",
        "asked in another way",
        "another process",
    ],
)
def test_what_moves_between_two_looks_is_busy(now: WorkerStacks, kind: HangKind, does: str) -> None:
    assert (found := find_hang(job(seen_worker(5, now, STUCK)))) is not None
    assert found.kind is kind
    assert found.sentence.startswith(f"rank 5 on node gpu0 {does} in ")


@pytest.mark.parametrize(
    ("waits_in", "does"), [("hrtimer_nanosleep", "sleeps"), ("futex_do_wait", "computes"), ("", "computes")]
)
def test_a_worker_whose_main_thread_sleeps_in_both_looks_computes_in_no_line_of_it(waits_in: str, does: str) -> None:
    before, now = replace(BUSY, waits_in=waits_in), replace(BUSY, waits_in="do_nanosleep")
    assert (found := find_hang(job(seen_worker(5, now, before)))) is not None
    assert (found.kind, found.sentence) == (
        HangKind.BUSY,
        f"rank 5 on node gpu0 {does} in evaluate (train.py:50) {THE_OTHERS}",
    )


def test_a_collective_whose_data_still_comes_and_goes_is_only_slow() -> None:
    assert find_hang(job(seen_worker(5, stands(5, io_bytes=100_000), stands(5)))) is None
    assert (found := find_hang(job(seen_worker(5, stands(5, io_bytes=1_000), stands(5))))) is not None
    assert found.kind is HangKind.NETWORK, "so little is no data of a collective"


@pytest.mark.parametrize("before", [replace(STUCK, cpus=0.9), replace(STUCK, state="running")])
def test_a_worker_that_was_busy_in_the_look_before_may_rest_for_a_moment(before: WorkerStacks) -> None:
    assert (found := find_hang(job(seen_worker(5, STUCK, before)))) is not None
    assert not found.is_hang


def test_while_one_is_busy_no_other_is_the_culprit() -> None:
    assert (found := find_hang(job(seen_worker(0, replace(BUSY, rank=0)), seen_worker(5, STUCK)))) is not None
    assert (found.kind, found.ranks) == (HangKind.BUSY, (0,))


def test_several_are_named_with_the_place_of_the_first() -> None:
    culprits = [seen_worker(rank, replace(STUCK, rank=rank)) for rank in range(6, 12)]
    assert (found := find_hang(job(*culprits))) is not None
    assert found.sentence.startswith("ranks 6, 7, 8, 9 and 2 more on nodes gpu0, gpu1 stand in DataLoader.__next__ (")
    assert found.waiting == 10


BARRIER = replace(WAITS, operation="gloo:barrier", shape="")


def test_where_no_place_has_most_of_the_workers_all_of_them_are_named() -> None:
    assert (found := find_hang([seen_worker(0, stands(0)), seen_worker(1, stands(1, BARRIER))])) is not None
    assert (found.kind, found.ranks) == (HangKind.MISMATCHED, (0, 1))
    assert found.sentence == (
        "rank 0 on node gpu0 waits in all_reduce 1,204 and rank 1 on node gpu0 in barrier 1,204, for 12 s"
    )


def test_workers_at_more_places_than_a_sentence_names_are_counted() -> None:
    found = find_hang([seen_worker(rank, stands(rank, replace(BARRIER, number=rank))) for rank in range(7)])
    assert found is not None
    assert found.sentence.endswith(
        "in barrier 3 and 2 more in other collectives, where rank 6 waits in barrier 6, for 12 s"
    )


def test_few_that_are_ahead_by_one_have_begun_one_too_many() -> None:
    assert (found := find_hang(job(seen_worker(5, stands(5, replace(WAITS, number=1205)))))) is not None
    assert (found.kind, found.ranks) == (HangKind.MISMATCHED, (5,))
    assert (found := find_hang(job(seen_worker(5, stands(5, replace(WAITS, number=1206)))))) is not None
    assert (found.kind, found.ranks) == (HangKind.MISMATCHED, tuple(rank for rank in range(WORLD) if rank != 5))


# Several groups


def of_groups(*groups: str, **changes: Any) -> list[SeenWorker]:
    """Return a job whose workers wait in these groups, each of which has two ranks."""
    waits = [replace(WAITS, group=group) for group in groups]
    return [seen_worker(8 * rank, stands(rank, wait, members=2, **changes)) for rank, wait in enumerate(waits)]


def test_groups_that_are_whole_and_complete_for_nobody_are_cut_off() -> None:
    assert (found := find_hang(of_groups("dp 0", "dp 0", "dp 1", "dp 1"))) is not None
    assert (found.kind, found.ranks) == (HangKind.NETWORK, (0, 8, 16, 24))
    assert found.sentence == (
        "all 4 workers wait in collectives of 2 groups, such as all_reduce 1,204 of dp 0, for 12 s, "
        "and none of them completes: look at the network between nodes gpu0, gpu1, gpu2, gpu3"
    )


@pytest.mark.parametrize("members", [0, 2])
def test_who_waits_for_a_member_of_a_whole_group_is_no_part_of_the_trouble(members: int) -> None:
    looked = of_groups("dp 0", "dp 0", "tp 1", "tp 2")
    found = find_hang([replace(worker, now=replace(worker.now, members=members)) for worker in looked if worker.now])
    assert found is not None
    assert (found.kind, found.ranks) == (HangKind.NETWORK, (0, 8))
    assert found.sentence == (
        "ranks 0, 8 on nodes gpu0, gpu1 wait in all_reduce 1,204 of dp 0 for 12 s, "
        "and it completes for none: look at the network between nodes gpu0, gpu1"
    )


def test_where_no_group_is_whole_the_workers_wait_for_each_other() -> None:
    assert (found := find_hang(of_groups("tp 2", "dp 1", "dp 0"))) is not None
    assert (found.kind, found.ranks) == (HangKind.MISMATCHED, (0, 8, 16))


def test_within_one_of_several_groups_workers_may_differ() -> None:
    looked = of_groups("dp 0", "dp 0", "dp 1", "dp 1")
    looked[3] = seen_worker(24, stands(3, replace(BARRIER, group="dp 1"), members=2))
    assert (found := find_hang(looked)) is not None
    assert (found.kind, found.ranks) == (HangKind.MISMATCHED, (16, 24))
    assert "rank 24 on node gpu3 in barrier 1,204 of dp 1" in found.sentence


def test_the_collectives_of_two_backends_of_a_group_are_no_sequence() -> None:
    on_gpus = replace(WAITS, operation="nccl:broadcast", number=5)
    assert (found := find_hang(job(*(seen_worker(rank, stands(rank, on_gpus)) for rank in (5, 6))))) is not None
    assert (found.kind, found.ranks) == (HangKind.MISMATCHED, (5, 6))


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("gloo:broadcast", HangKind.NETWORK),
        ("nccl:_broadcast_oop", HangKind.NETWORK),
        ("gloo:reduce", HangKind.NETWORK),
        ("gloo:all_reduce", HangKind.MISMATCHED),
        ("gloo:all_gather", HangKind.MISMATCHED),
    ],
)
def test_a_broadcast_that_is_over_for_some_is_cut_off_from_the_others(operation: str, kind: HangKind) -> None:
    behind = replace(WAITS, operation=operation, number=1203)
    backend = operation.partition(":")[0]
    ahead = replace(WAITS, operation=f"{backend}:all_reduce")
    looked = [seen_worker(rank, stands(rank, behind if rank in {2, 9} else ahead)) for rank in range(10)]
    assert (found := find_hang(looked)) is not None
    assert (found.kind, found.ranks) == (kind, (2, 9))
    if operation == "gloo:broadcast":
        assert found.sentence == (
            "ranks 2, 9 on nodes gpu0, gpu1 wait in broadcast 1,203 for 12 s, which is over for 8 others: "
            "look at the network between nodes gpu0, gpu1"
        )


def test_nobody_who_waits_is_a_culprit_while_data_moves_wherever_it_is() -> None:
    apart = [("dp 0", 5), ("dp 0", 5), ("dp 1", 5), ("dp 1", 6)]
    before = [stands(rank, replace(WAITS, group=group, number=number)) for rank, (group, number) in enumerate(apart)]
    for moved in range(4):
        now = [replace(worker, io_bytes=100_000 * (worker.rank == moved)) for worker in before]
        assert find_hang([seen_worker(w.rank, w, b) for w, b in zip(now, before, strict=True)]) is None


@pytest.mark.parametrize(
    ("before", "now", "moves"),
    [(1_000, 101_000, True), (1_000, 2_000, False), (101_000, 1_000, False), (0, 101_000, False), (101_000, 0, False)],
    ids=["comes and goes", "hardly", "a connection was closed", "not counted before", "not counted now"],
)
def test_what_comes_and_goes_on_connections_moves(before: int, now: int, *, moves: bool) -> None:
    looked = job(seen_worker(5, stands(5, network_bytes=now), stands(5, network_bytes=before)))
    assert (find_hang(looked) is None) == moves


@pytest.mark.parametrize("operation", ["gloo:gather", "gloo:scatter", "nccl:all_to_all"])
def test_other_sizes_are_no_mismatch_where_they_may_differ(operation: str) -> None:
    wait = replace(WAITS, operation=operation)
    found = find_hang(
        job(seen_worker(5, stands(5, replace(wait, shape=""))), *(seen_worker(r, stands(r, wait)) for r in range(5)))
    )
    assert found is not None
    found = find_hang([seen_worker(0, stands(0, wait)), seen_worker(1, stands(1, replace(wait, shape="")))])
    assert found is not None
    assert found.kind is HangKind.NETWORK


def test_nobody_is_a_culprit_while_somebody_gets_on_or_nobody_waits() -> None:
    assert find_hang(job(seen_worker(5, stands(5, MOVES)))) is None
    assert find_hang([seen_worker(rank, replace(BUSY, rank=rank)) for rank in range(4)]) is None
    assert find_hang([seen_worker(rank, stands(rank, None)) for rank in range(4)]) is None
    assert find_hang([]) is None


SHORT = st.text(max_size=8)
COLLECTIVES = st.none() | st.builds(
    Collective, SHORT, st.integers(0, 5), st.sampled_from(CollectiveState), SHORT, SHORT, st.floats(0, 99)
)
LOOKS = st.none() | st.builds(
    WorkerStacks,
    st.integers(0, 9),
    st.sampled_from(StackOrigin),
    st.binary(max_size=60) | st.just(LOADS),
    st.sampled_from(["", "sleeping", "stopped", "ended", "running"]),
    SHORT,
    st.sampled_from([0.0, 1.0]),
    COLLECTIVES,
    SHORT,
)


@settings(max_examples=20)
@given(st.lists(st.builds(SeenWorker, st.sampled_from("ab"), st.integers(0, 9), LOOKS, LOOKS), max_size=6))
def test_whatever_workers_say_the_verdict_names_some_of_them(seen_workers: list[SeenWorker]) -> None:
    found = find_hang(seen_workers)
    if found is not None:
        assert set(found.ranks) <= {worker.rank for worker in seen_workers}
        assert found.ranks
        assert found.sentence.isprintable()


def test_a_stack_that_lacks_the_frames_of_the_script_is_named_by_its_innermost_one() -> None:
    cut = pack_stacks([("MainThread", ("wait (threading.py:359)", "get (queue.py:180)", "...", "spawn (spawn.py:7)"))])
    assert (found := find_hang(job(seen_worker(5, replace(STUCK, stacks=cut))))) is not None
    assert found.sentence.startswith("rank 5 on node gpu0 stands in wait (threading.py:359) ")


@pytest.mark.parametrize(
    ("states", "rest"),
    [
        (("",), "rank 1 has ended"),
        (("sleeping",), "rank 1 is idle"),
        (("", "ended"), "the 2 others have ended"),
        (("", "sleeping"), "the 2 others are idle or have ended"),
        (("sleeping", "sleeping"), "the 2 others are idle"),
    ],
)
def test_beside_a_halted_worker_it_is_said_whether_the_others_have_ended(states: tuple[str, ...], rest: str) -> None:
    halted = seen_worker(0, stands(0, None, state="stopped"))
    others = (seen_worker(rank, stands(rank, None, state=state)) for rank, state in enumerate(states, 1))
    verdict = find_hang([halted, *others])
    assert verdict is not None
    assert verdict.sentence.endswith(f"; {rest}")
