"""What a worker tells of its collectives, where torch has one flight recorder, two or none."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.support.flight_recorder import needs_flight_recorder
from tests.support.programs import TIMEOUT_S, wait_until
from workerlib import responder

NCCL, GLOO = responder.RECORDERS

Entries = list[dict[str, Any]]


def entry(operation: str, number: int, *, retired: bool, group: int = 0) -> dict[str, Any]:
    """Return an entry of a recorder, with its keys in torch's order."""
    return {
        "collective_seq_id": number,
        "input_dtypes": ["Float"],
        "input_sizes": [[8]],
        "is_p2p": False,
        "pg_id": group,
        "process_group": ["0", "default_pg"],
        "profiling_name": operation,
        "retired": retired,
        "time_created_ns": number,
    }


class Recorder:
    """A flight recorder as torch has it: the counters of its groups, and its entries, which are dear."""

    def __init__(self, entries: Entries, *, gets_on: bool = False) -> None:
        self.entries = entries
        self.gets_on = gets_on
        self.dumped = 0
        self.held_lock = 0

    def dump(self, whole: bool) -> bytes:
        """Return the counters, or all that there is; the lock of Python is held meanwhile."""
        if whole:
            self.held_lock += 1
            return self.text.encode()
        number = self.entries[-1]["collective_seq_id"] if self.entries else 0
        if self.gets_on:
            self.entries = [*self.entries, entry("gloo:all_reduce", number + 1, retired=False)]
        status = {str(each["pg_id"]): {"last_enqueued_collective": str(number)} for each in self.entries}
        return json.dumps({"pg_status": status}).encode()

    def handle(self, _: object, response: Any) -> None:
        """Give all that there is to torch's server for workers."""
        self.dumped += 1
        response.set_content(self.text, "application/json")

    @property
    def text(self) -> str:
        """Return all that there is."""
        return json.dumps({"entries": self.entries}, separators=(",", ":"))


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Let this process have a torch with these recorders."""

    def install(handlers: bool = True, **recorders: Recorder) -> None:
        named = {{"nccl": NCCL, "gloo": GLOO}[name]: recorder for name, recorder in recorders.items()}
        c10d = SimpleNamespace(**{name: recorder.dump for name, recorder in named.items()})
        if handlers:
            by_handler = {responder.RECORDERS[name]: recorder.handle for name, recorder in named.items()}
            c10d._Request, c10d._Response, c10d._get_handler = object, object, by_handler.__getitem__
        monkeypatch.setitem(sys.modules, responder.C10D, c10d)

    return install


def answered() -> list[tuple[str, int, str]]:
    """Return what the worker tells of its collectives."""
    found = json.loads(responder._answer())["collectives"]
    return [(each.get("operation", ""), int(each["number"]), each["state"]) for each in found]


def test_a_wait_in_either_of_two_backends_is_told_first(install: Install) -> None:
    done, waits = entry("nccl:all_reduce", 100, retired=True), entry("gloo:barrier", 7, retired=False)
    install(nccl=Recorder([done]), gloo=Recorder([waits]))
    assert answered() == [("gloo:barrier", 7, "waits"), ("nccl:all_reduce", 100, "done")]


@pytest.mark.parametrize("moving", ["nccl", "gloo"])
def test_a_worker_whose_one_backend_gets_on_waits_in_neither(install: Install, moving: str) -> None:
    still = Recorder([entry("nccl:all_reduce", 100, retired=False)])
    moves = Recorder([entry("gloo:all_reduce", 7, retired=False)], gets_on=True)
    install(**{"nccl": still, "gloo": still, moving: moves})
    assert {state for _, _, state in answered()} == {"moves"}
    assert still.dumped + still.held_lock + moves.dumped + moves.held_lock == 0, "its training goes on undisturbed"


def test_a_recorder_is_read_beside_the_lock_of_python_where_torch_can_do_that(install: Install) -> None:
    recorder = Recorder([entry("gloo:all_reduce", 7, retired=False)])
    install(gloo=recorder)
    assert answered() == [("gloo:all_reduce", 7, "waits")]
    assert (recorder.dumped, recorder.held_lock) == (1, 0)


def test_an_older_torch_is_read_all_the_same(install: Install) -> None:
    install(handlers=False, nccl=Recorder([entry("nccl:all_reduce", 7, retired=False)]))
    assert answered() == [("nccl:all_reduce", 7, "waits")]


def test_a_process_that_ends_tells_where_it_stands_too(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responder, "_dumping", threading.Lock())
    responder._await_dump()
    recorder = Recorder([entry("gloo:barrier", 7, retired=False)])
    install(gloo=recorder)
    assert answered() == [("gloo:barrier", 7, "waits")]
    assert (recorder.dumped, recorder.held_lock) == (0, 1)


def test_of_two_recorders_one_may_be_strange(install: Install) -> None:
    strange = Recorder([{"collective_seq_id": 5}])
    install(nccl=strange, gloo=Recorder([entry("gloo:barrier", 7, retired=False)]))
    assert answered() == [("gloo:barrier", 7, "waits")]


def test_without_a_recorder_nothing_is_told(install: Install) -> None:
    install()
    assert answered() == []
    install(nccl=Recorder([]), gloo=Recorder([]))
    assert answered() == []


def test_the_arrivals_of_both_backends_of_a_group_are_told_apart(install: Install) -> None:
    install(
        nccl=Recorder([entry("nccl:all_reduce", number, retired=True) for number in (8, 9, 10)]),
        gloo=Recorder([entry("gloo:all_reduce", number, retired=True) for number in range(1, 6)]),
    )
    assert json.loads(responder._arrivals(b"arrivals 4"))["arrivals"] == [
        {"group": "gloo default_pg", "first": 2, "times_ns": [2, 3, 4, 5]},
        {"group": "nccl default_pg", "first": 8, "times_ns": [8, 9, 10]},
    ]


def test_the_first_of_very_many_that_are_not_over_is_told(install: Install) -> None:
    done = [entry("gloo:all_reduce", number, retired=True) for number in range(1, 301)]
    pending = [entry("gloo:all_reduce", number, retired=False) for number in range(301, 501)]
    install(gloo=Recorder([*done, *pending]))
    assert answered() == [("gloo:all_reduce", 301, "waits")]
    assert len(responder._pending_entries(Recorder([*done, *pending]).text, GLOO)) == 201, (
        "no more than it takes are read"
    )
    assert len(responder._pending_entries(Recorder(done).text, GLOO)) == responder.ENTRIES_MAX


def test_what_is_sent_from_rank_to_rank_is_no_collective(install: Install) -> None:
    done = entry("nccl:all_reduce", 7, retired=True)
    receives = {**entry("nccl:recv 1<-0", 7, retired=False), "is_p2p": True}
    install(nccl=Recorder([done, receives]))
    assert answered() == [("nccl:all_reduce", 7, "done")]


@pytest.mark.parametrize(
    ("description", "name"),
    [("default_pg", "default_pg"), ("undefined", "group 2"), ("", "group 2"), ("mesh_tp", "mesh_tp 2")],
)
def test_a_group_has_a_name_that_a_person_understands(install: Install, description: str, name: str) -> None:
    install(gloo=Recorder([{**entry("gloo:barrier", 7, retired=False), "process_group": ["2", description]}]))
    [found] = json.loads(responder._answer())["collectives"]
    assert (found["group"], found["members"]) == (name, 0)


def test_how_many_ranks_a_group_has_is_told_where_torch_tells(install: Install) -> None:
    install(gloo=Recorder([entry("gloo:barrier", 7, retired=False)]))
    groups = {"0": SimpleNamespace(size=lambda: 16)}
    sys.modules[responder.C10D]._resolve_process_group = groups.__getitem__  # type: ignore[attr-defined]
    [found] = json.loads(responder._answer())["collectives"]
    assert found["members"] == 16


def test_bytes_that_come_and_go_on_connections_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            before = responder._network_bytes()
            sender.sendall(bytes(10_000))
            while len(receiver.recv(10_000, socket.MSG_PEEK)) < 10_000:  # it has come, and is not read
                pass
            assert responder._network_bytes() - before >= 10_000


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
    monkeypatch.setattr(responder, "_over", set())
    responder.begin_round()
    left = Pair()
    left.begin()
    assert answered() == [("gloo:all_reduce", 1, "waits")]
    responder.begin_round()
    assert answered() == []
    assert json.loads(responder._arrivals(b"arrivals 4"))["arrivals"] == []
    now = Pair()
    now.begin()
    now.end()
    now.begin()
    wait_until("the second one to be told of", lambda: answered() == [("gloo:all_reduce", 2, "waits")])
    for pair in (left, now):
        pair.end()


def test_a_group_of_this_round_is_told_whose_number_another_backend_had_before(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each backend of torch counts its own groups from 0."""
    monkeypatch.setattr(responder, "_over", set())
    nccl = Recorder([entry("nccl:all_reduce", 3, retired=True, group=group) for group in range(2)])
    gloo = Recorder([entry("gloo:barrier", 1, retired=True)])
    install(nccl=nccl, gloo=gloo)
    responder.begin_round()
    gloo.entries = [*gloo.entries, entry("gloo:barrier", 2, retired=False, group=1)]
    assert answered() == [("gloo:barrier", 2, "waits")]


def test_of_connections_only_a_worker_tells_that_does_not_get_on(install: Install) -> None:
    install(gloo=Recorder([entry("gloo:barrier", 7, retired=False)]))
    assert "network_bytes" in json.loads(responder._answer())
    install(gloo=Recorder([entry("gloo:barrier", 7, retired=False)], gets_on=True))
    assert "network_bytes" not in json.loads(responder._answer())


def test_a_worker_of_many_deep_threads_tells_of_its_collective_and_its_main_thread(install: Install) -> None:
    install(gloo=Recorder([entry("gloo:all_reduce", 9, retired=False)]))
    over, ready = threading.Event(), threading.Semaphore(0)

    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)
        else:
            ready.release()
            over.wait()

    threads = [threading.Thread(target=descend, args=(responder.FRAMES_MAX,)) for _ in range(responder.THREADS_MAX)]
    for thread in threads:
        thread.start()
    for _ in threads:
        ready.acquire()
    with ThreadPoolExecutor(1) as pool:
        packet = pool.submit(responder._answer).result()
    over.set()
    for thread in threads:
        thread.join()
    answer = json.loads(packet)
    assert len(packet) <= responder.PACKET_BYTES
    assert [collective["number"] for collective in answer["collectives"]] == [9]
    assert 1 <= len(answer["threads"]) < responder.THREADS_MAX
    assert answer["threads"][0]["name"] == "MainThread"
