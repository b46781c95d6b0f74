"""What a worker tells of its collectives, by the flight recorders that its torch has."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.support.condensed_dumps import dumps_of
from tests.support.flight_recorder import Recorder, entry, install, needs_flight_recorder
from tests.support.programs import TIMEOUT_S, wait_until
from workerlib.contract import recorders

pytestmark = pytest.mark.slow

REAL_HANG = Path(__file__).parents[2] / "nodeclient" / "diagnosis" / "gpu_error_1st.json"


def answered() -> list[tuple[str, int, str]]:
    """Return what the worker tells of its collectives."""
    found = recorders.collectives()
    return [(each.get("operation", ""), int(each["number"]), each["state"]) for each in found]


def test_a_wait_in_either_of_two_backends_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    done, waits = entry("nccl:all_reduce", 100, retired=True), entry("gloo:barrier", 7, retired=False)
    install(monkeypatch, nccl=Recorder([done]), gloo=Recorder([waits]))
    assert answered() == [("gloo:barrier", 7, "waits"), ("nccl:all_reduce", 100, "done")]


def test_where_neither_of_two_backends_waits_the_one_that_was_used_last_is_told_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    earlier = entry("nccl:all_reduce", 60, retired=True)
    later = {**entry("gloo:all_reduce", 30, retired=True), "time_created_ns": 10**9}
    install(monkeypatch, nccl=Recorder([earlier]), gloo=Recorder([later]))
    assert answered() == [("gloo:all_reduce", 30, "done"), ("nccl:all_reduce", 60, "done")]


@pytest.mark.parametrize("moving", ["nccl", "gloo"])
def test_a_worker_whose_one_backend_gets_on_waits_in_neither(monkeypatch: pytest.MonkeyPatch, moving: str) -> None:
    still = Recorder([entry("nccl:all_reduce", 100, retired=False)])
    moves = Recorder([entry("gloo:all_reduce", 7, retired=False)], gets_on=True)
    install(monkeypatch, **{"nccl": still, "gloo": still, moving: moves})
    assert {state for _, _, state in answered()} == {"moves"}
    assert still.dumped + still.held_lock + moves.dumped + moves.held_lock == 0, "its training goes on undisturbed"


def test_a_recorder_is_read_beside_the_lock_of_python_where_torch_can_do_that(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder([entry("gloo:all_reduce", 7, retired=False)])
    install(monkeypatch, gloo=recorder)
    assert answered() == [("gloo:all_reduce", 7, "waits")]
    assert (recorder.dumped, recorder.held_lock) == (1, 0)


def test_an_older_torch_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, gloo=Recorder([entry("gloo:all_reduce", 7, retired=False)]))
    monkeypatch.delattr(sys.modules[recorders.C10D], "_get_handler")
    assert answered() == [("gloo:all_reduce", 7, "waits")]


def test_a_process_that_ends_tells_where_it_stands_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "_dump_lock", threading.Lock())
    recorders.await_dump()
    recorder = Recorder([entry("gloo:barrier", 7, retired=False)])
    install(monkeypatch, gloo=recorder)
    assert answered() == [("gloo:barrier", 7, "waits")]
    assert (recorder.dumped, recorder.held_lock) == (0, 1)


def test_of_two_recorders_one_may_be_strange(monkeypatch: pytest.MonkeyPatch) -> None:
    strange = Recorder([{"collective_seq_id": 5}])
    install(monkeypatch, nccl=strange, gloo=Recorder([entry("gloo:barrier", 7, retired=False)]))
    assert answered() == [("gloo:barrier", 7, "waits")]


def test_without_a_recorder_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert answered() == []
    install(monkeypatch, nccl=Recorder([]), gloo=Recorder([]))
    assert answered() == []


def test_the_arrivals_of_both_backends_of_a_group_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch,
        nccl=Recorder([entry("nccl:all_reduce", number, retired=True) for number in (8, 9, 10)]),
        gloo=Recorder([entry("gloo:all_reduce", number, retired=True) for number in range(1, 6)]),
    )
    assert recorders.arrivals(4) == [
        {"group": "gloo default_pg", "first": 2, "times_ns": [2, 3, 4, 5]},
        {"group": "nccl default_pg", "first": 8, "times_ns": [8, 9, 10]},
    ]


def test_the_first_of_very_many_that_are_not_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    done = [entry("gloo:all_reduce", number, retired=True) for number in range(1, 301)]
    pending = [entry("gloo:all_reduce", number, retired=False) for number in range(301, 501)]
    install(monkeypatch, gloo=Recorder([*done, *pending]))
    assert answered() == [("gloo:all_reduce", 301, "waits")]
    assert len(recorders._pending_entries(Recorder([*done, *pending]).text, "gloo")) == 201, (
        "no more than it takes are read"
    )
    assert len(recorders._pending_entries(Recorder(done).text, "gloo")) == recorders.ENTRIES_MIN


def exchange(operation: str, number: int, *, retired: bool) -> dict[str, Any]:
    """Return an entry of an exchange with one peer."""
    return {
        **entry(operation, 7, retired=retired),
        "is_p2p": True,
        "p2p_seq_id": number,
        "time_created_ns": number * 10**6,
    }


def have_ranks(monkeypatch: pytest.MonkeyPatch, *ranks: int) -> None:
    """Let each process group have these ranks."""
    sys.modules[recorders.C10D]._resolve_process_group = str  # type: ignore[attr-defined]
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: ranks)


def test_a_peer_that_is_waited_for_is_told_by_its_rank_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    received = exchange("nccl:recv 1<-0", 3, retired=True)
    entries = [received, exchange("nccl:send 1->2", 4, retired=False), exchange("nccl:recv 1<-3", 5, retired=False)]
    install(
        monkeypatch, nccl=Recorder([*entries, {**entry("nccl:all_reduce", 9, retired=False), "time_created_ns": 10**8}])
    )
    assert answered() == [
        ("nccl:send 1->2", 4, "waits"),
        ("nccl:recv 1<-3", 5, "waits"),
        ("nccl:all_reduce", 9, "waits"),
    ]
    have_ranks(monkeypatch, 0, 4, 8, 12)
    assert answered()[0] == ("nccl:send to 8", 4, "waits")
    install(monkeypatch, nccl=Recorder([received]))
    assert answered() == [], "what has come from a peer tells of no group"


def test_of_a_batch_only_the_last_entry_is_ever_over(monkeypatch: pytest.MonkeyPatch) -> None:
    gathers, whole = (entry(f"nccl:{name}", 7, retired=name == "coalesced") for name in ("all_gather", "coalesced"))
    install(monkeypatch, nccl=Recorder([gathers, whole]))
    assert answered() == [("nccl:coalesced", 7, "done")]
    batch = [exchange("nccl:send 0->1", 4, retired=False), exchange("nccl:recv 0<-1", 4, retired=False)]
    install(monkeypatch, nccl=Recorder([*batch, exchange("nccl:coalesced", 4, retired=True)]))
    assert answered() == []
    install(monkeypatch, nccl=Recorder([*batch, exchange("nccl:coalesced", 4, retired=False)]))
    assert answered()[0] == ("nccl:send 0->1", 4, "waits")


@pytest.mark.parametrize("engine", recorders.RECORDERS)
def test_what_was_recorded_in_a_real_hang_is_told_of_each_engine(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    entries = dumps_of(REAL_HANG)[12]["entries"]
    for each in entries:
        each |= {"pg_id": 0, "profiling_name": each["profiling_name"].replace("nccl", engine)}
    install(monkeypatch, **{engine: Recorder(entries)})
    have_ranks(monkeypatch, 0, 4, 8, 12)
    first, *others = answered()
    assert first == (f"{engine}:_all_gather_base", 42_806, "waits")
    assert {state for _, _, state in others} == {"waits"}
    assert (f"{engine}:all_to_all", 20_530, "waits") in others
    assert (f"{engine}:recv from 0", 11_977, "waits") in others


@pytest.mark.parametrize("engine", recorders.RECORDERS)
def test_the_recorder_of_each_engine_is_read(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    done, waits = (entry(f"{engine}:all_reduce", number, retired=number == 8) for number in (8, 9))
    recorder = Recorder([done, waits])
    install(monkeypatch, **{engine: recorder})
    assert answered() == [(f"{engine}:all_reduce", 9, "waits")]
    assert recorders.arrivals(4) == [{"group": f"{engine} default_pg", "first": 8, "times_ns": [8, 9]}]
    assert (recorder.dumped, recorder.held_lock) == ((2, 0) if engine == "gloo" else (0, 2)), (
        "only gloo's has a handler"
    )


@pytest.mark.parametrize(
    ("description", "name"),
    [("default_pg", "default_pg"), ("undefined", "group 2"), ("", "group 2"), ("mesh_tp", "mesh_tp 2")],
)
def test_a_group_has_a_name_that_a_person_understands(
    monkeypatch: pytest.MonkeyPatch, description: str, name: str
) -> None:
    install(
        monkeypatch, gloo=Recorder([{**entry("gloo:barrier", 7, retired=False), "process_group": ["2", description]}])
    )
    [found] = recorders.collectives()
    assert (found["group"], found["members"]) == (name, 0)


def test_how_many_ranks_a_group_has_is_told_where_torch_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, gloo=Recorder([entry("gloo:barrier", 7, retired=False)]))
    have_ranks(monkeypatch, *range(16))
    [found] = recorders.collectives()
    assert found["members"] == 16


def test_groups_of_one_split_are_told_apart_by_their_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    split = {**entry("nccl:barrier", 7, retired=False), "process_group": ["41", "A_DESCRIPTION_OF_MORE_THAN_32_BYTES"]}
    install(monkeypatch, nccl=Recorder([split]))
    have_ranks(monkeypatch, 12, 13)
    [found] = recorders.collectives()
    assert found["group"] == "A_DESCRIPTION_OF_MORE_THAN 41@12"
    assert len(found["group"]) == recorders.NAME_MAX


class Pair:
    """A process group of two ranks in this process. All of these have the same name, as default groups have."""

    def __init__(self) -> None:
        store, wait = HashStore(), timedelta(seconds=TIMEOUT_S)
        with ThreadPoolExecutor(2) as pool:
            self._ranks: list[Any] = list(pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, wait), range(2)))

    def begin(self) -> None:
        """Let one rank wait for the other one."""
        self._work = self._ranks[0].allreduce(torch.ones(1))

    def end(self) -> None:
        """Let the other one come."""
        self._ranks[1].allreduce(torch.ones(1)).wait()
        self._work.wait()


@needs_flight_recorder
def test_nothing_is_told_of_the_groups_of_a_round_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective that was left in the middle is never over. The next round's group must not seem to wait in it."""
    monkeypatch.setattr(recorders, "_earlier_groups", set())
    recorders.begin_round()
    left = Pair()
    left.begin()
    assert answered() == [("gloo:all_reduce", 1, "waits")]
    recorders.begin_round()
    assert answered() == []
    assert recorders.arrivals(4) == []
    now = Pair()
    now.begin()
    now.end()
    now.begin()
    wait_until("the second one to be told of", lambda: answered() == [("gloo:all_reduce", 2, "waits")])
    for pair in (left, now):
        pair.end()


def test_a_group_of_this_round_is_told_whose_number_another_backend_had_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backend of torch counts its own groups from 0."""
    monkeypatch.setattr(recorders, "_earlier_groups", set())
    nccl = Recorder([entry("nccl:all_reduce", 3, retired=True, group=group) for group in range(2)])
    gloo = Recorder([entry("gloo:barrier", 1, retired=True)])
    install(monkeypatch, nccl=nccl, gloo=gloo)
    recorders.begin_round()
    gloo.entries = [*gloo.entries, entry("gloo:barrier", 2, retired=False, group=1)]
    assert answered() == [("gloo:barrier", 2, "waits")]
