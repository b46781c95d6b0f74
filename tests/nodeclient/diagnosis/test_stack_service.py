"""Real processes are asked where they stand: while they train, and in each kind of standstill."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType

import pytest

from coordinatord.protocol.arrival_messages import WorkerArrivals, unpack_ages
from coordinatord.protocol.stack_messages import StackOrigin, Stacks, WorkerStacks, unpack_stacks
from nodeclient.diagnosis.stack_service import StackService
from nodeclient.host.awaited import awaited_outside
from tests.nodeclient.diagnosis.stage import KNOWN, TORCH, Stage, staged
from tests.support.flight_recorder import needs_flight_recorder
from workerlib.responder import PACKET_BYTES

pytestmark = pytest.mark.slow


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as stage:
        yield stage


def innermost(found: WorkerStacks) -> str:
    threads = unpack_stacks(found.stacks)
    return threads[0][1][0] if threads else ""


@pytest.mark.parametrize(
    ("script", "is_settled", "state", "function", "waits_for"),
    [
        ("lock", lambda found: found.cpus == 0, "sleeping", "lock (<string>:", ""),
        ("runs", lambda found: found.waits_for, "sleeping", "Popen._try_wait (", "the program cat (process "),
        ("writes", lambda found: found.waits_for, "sleeping", "", "its output to be read"),
        ("debugs", lambda found: found.state == "traced", "traced", "", ""),
        ("spin", lambda found: found.cpus > 0, "running", "spin (", ""),
    ],
)
async def test_a_worker_answers_where_it_is_and_what_it_waits_for(
    stage: Stage,
    script: str,
    is_settled: Callable[[WorkerStacks], object],
    state: str,
    function: str,
    waits_for: str,
) -> None:
    def is_there(found: WorkerStacks) -> bool:
        """Whether the worker answers, is where it stays, and was not just about to run or to come there."""
        return found.origin is StackOrigin.WORKER and found.state == state and innermost(found).startswith(function)

    stage.start(script)
    found = await stage.look(lambda found: is_there(found) and bool(is_settled(found)))
    assert found.rank == 5
    assert [name for name, _ in unpack_stacks(found.stacks)][:1] == ["MainThread"]
    assert found.waits_for.startswith(waits_for)


async def test_the_event_loop_reads_no_memory_of_a_worker(stage: Stage) -> None:
    called = set[CodeType]()
    stage.start("runs")
    sys.setprofile(lambda frame, *_: called.add(frame.f_code))
    try:
        await stage.look(lambda found: bool(found.waits_for))
    finally:
        sys.setprofile(None)
    assert StackService.read.__code__ in called
    assert awaited_outside.__code__ not in called


async def test_a_worker_whose_c_code_holds_the_lock_of_python_is_had_by_the_signal(stage: Stage) -> None:
    stage.start("gil")
    await stage.look(lambda found: found.origin is StackOrigin.SIGNAL and innermost(found).startswith("gil ("))
    found = await stage.look(lambda found: found.origin is not StackOrigin.NONE)  # asked again, it is as it was
    assert found.origin is StackOrigin.SIGNAL
    assert innermost(found).startswith("gil (")


async def test_a_stopped_process_is_not_asked_and_its_state_is_told(stage: Stage) -> None:
    stage.start("spin")
    await stage.look(lambda found: found.origin is StackOrigin.WORKER)
    os.kill(stage.pid, signal.SIGSTOP)
    found = await stage.look(lambda found: (found.state, found.origin) == ("stopped", StackOrigin.NONE))
    assert found.stacks == b""
    assert found.problem == "it cannot answer: its process is stopped"
    os.kill(stage.pid, signal.SIGCONT)
    assert (await stage.look(lambda found: found.origin is StackOrigin.WORKER)).problem == ""


async def test_of_a_worker_that_knows_nothing_of_it_the_kernel_tells_also_while_another_round_begins(
    stage: Stage,
    tmp_path: Path,
) -> None:
    stage.start("lock", imports="")
    found = await stage.look(lambda found: found.state == "sleeping")
    assert found.origin is StackOrigin.NONE
    assert found.problem == (
        "it does not answer: its script has called nothing of workerlib yet and runs without --preload, or has become "
        "another program; start nodeclient with --preload torch, or try py-spy dump --pid PID on its host"
    )
    async with asyncio.TaskGroup() as group:
        stage.looked.clear()
        asked = group.create_task(stage.ask())
        await stage.looked.wait()
        stage.service.listen(tmp_path, "run", 2, range(9, 10))
    [found] = asked.result().workers
    assert found.rank == 5


async def test_a_worker_that_has_taken_the_signal_for_itself_is_never_sent_it(stage: Stage) -> None:
    stage.start("gil", imports=f"import signal; signal.signal(signal.SIGRTMAX - 3, print); {KNOWN}")
    found = await stage.look(lambda found: found.problem == "it does not answer")
    assert (found.origin, found.state) == (StackOrigin.NONE, "running")


async def test_a_worker_that_has_ended_is_said_to_have_ended(stage: Stage) -> None:
    stage.start("ready")
    await stage.look(lambda found: found.state in {"ended", ""} and not found.stacks)


async def test_whatever_else_connects_leaves_the_worker_its_place(stage: Stage, tmp_path: Path) -> None:
    stage.start("lock")
    await stage.look(lambda found: found.origin is StackOrigin.WORKER)
    folder = os.open(tmp_path, os.O_RDONLY)
    speeches = (b"", b"{}", b'{"local_rank":1e999,"signal":1}', b'{"local_rank":0,"signal":1}')
    for speech in speeches:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as strange:
            strange.connect(str(tmp_path / "stacks"))
            socket.send_fds(strange, [speech], [folder])
            assert await asyncio.to_thread(strange.recv, 1) == b"", "it is shown out"
    os.close(folder)
    assert (await stage.look(lambda found: found.origin is StackOrigin.WORKER)).problem == ""


@needs_flight_recorder
async def test_a_worker_says_when_it_came_to_its_last_collectives(stage: Stage) -> None:
    stage.start("trains", imports=TORCH)
    arrivals = await stage.arrivals()
    while not (arrivals.workers and arrivals.workers[0].groups):  # a busy host may take its time
        arrivals = await stage.arrivals()
    [worker] = arrivals.workers
    [group] = worker.groups
    ages = unpack_ages(group.ages)
    assert (arrivals.request, arrivals.problem, worker.rank, group.group) == (3, "", 5, "gloo default_pg")
    assert len(ages) == 50
    assert ages == sorted(ages, reverse=True)
    assert 0 <= arrivals.held_s <= arrivals.clock_s
    [again] = (await stage.arrivals()).workers
    assert all(group.first == other.first for other in again.groups), "it has gone no further"


def connect_as(local_rank: int, folder: Path) -> socket.socket:
    """Connect as a worker that knows no signal."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(folder / "stacks"))
    read, write = os.pipe()
    socket.send_fds(connection, [json.dumps({"local_rank": local_rank, "signal": 0}).encode()], [read])
    os.close(read)
    os.close(write)
    return connection


async def test_the_arrivals_of_all_workers_of_a_node_have_their_ages_at_the_same_moment(tmp_path: Path) -> None:
    """Otherwise the worker that answers later seems to come later, by all that the host lets its answer wait."""
    came = {"group": "gloo default_pg", "first": 1, "times_ns": [time.time_ns() - 10**9]}
    async with staged(tmp_path) as stage:
        stage.service.listen(tmp_path, "run", 1, range(5, 7))
        with connect_as(0, tmp_path) as first, connect_as(1, tmp_path) as second, ThreadPoolExecutor() as threads:
            for worker in (first, second):
                threads.submit(answer_all, worker, json.dumps({"arrivals": [came]}).encode())
            found = await stage.arrivals(local_ranks=(0, 1))
            while len(found.workers) < 2:  # not both are let in yet
                found = await stage.arrivals(local_ranks=(0, 1))
            stage.service.close()
    assert found.workers[0].groups == found.workers[1].groups != ()


def answer_all(worker: socket.socket, answer: bytes) -> None:
    """Give each question the same answer, until the node closes the connection."""
    while worker.recv(PACKET_BYTES):
        worker.send(answer)


@needs_flight_recorder
async def test_a_worker_that_ends_while_it_is_asked_when_it_came_ends_well(stage: Stage) -> None:
    stage.start("ends", imports=TORCH)
    while stage.poll() is None:  # its first answers may be that nobody has connected yet
        await stage.arrivals()
    assert stage.poll() == 0


async def test_without_a_recorder_there_are_no_arrivals_and_of_another_round_nothing_is_told(stage: Stage) -> None:
    stage.start("lock")
    await stage.look(lambda found: found.origin is StackOrigin.WORKER)
    found = await stage.arrivals()
    assert (found.workers, found.problem) == ((WorkerArrivals(5, ()),), "")
    problem = "this node has no workers of that round"
    assert (await stage.arrivals(2)).problem == problem
    assert await stage.ask(2) == Stacks(3, (), problem)


async def test_a_worker_that_goes_as_it_is_asked_for_arrivals_has_none(stage: Stage) -> None:
    stage.start("lock")
    await stage.look(lambda found: found.origin is StackOrigin.WORKER)
    asked = asyncio.ensure_future(stage.arrivals())
    await asyncio.sleep(0)  # the question is on its way
    await asyncio.sleep(0)  # whom it goes to is chosen
    stage.service.close()
    found = await asked
    assert (found.workers, found.problem) == ((WorkerArrivals(5, ()),), "")
