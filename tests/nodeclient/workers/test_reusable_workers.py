"""The agent's end of the connection to a worker that stays: what it is told, and what it makes of lies."""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinatord.runtime.tasks import Tasks
from nodeclient.core import effects
from nodeclient.core.events import CollectiveFailed, Event, ReuseReported, WorkerAborts, WorkerLeft, WorkerRefuses
from nodeclient.host.process_state import is_stopped
from nodeclient.workers import process_tree
from nodeclient.workers.leftover_processes import EndedWorker
from nodeclient.workers.local_workers import LocalWorkers
from nodeclient.workers.process_tree import UnkillableError
from nodeclient.workers.reusable_workers import STOPPED, ReusableWorkers
from nodeclient.workers.spawn import WorkerCommand
from tests.support.own_outputs import own_outputs
from tests.support.programs import TIMEOUT_S, wait_until
from workerlib.contract.env import ROUNDS, STACKS
from workerlib.contract.packets import PACKET_BYTES
from workerlib.contract.round_messages import (
    ROUND_CODEC,
    Aborted,
    Aborting,
    AskToLeave,
    Failed,
    Left,
    NextRound,
    Refusing,
    Reusable,
    RoundMessage,
)

COMMANDS = [WorkerCommand(("true",), {"RANK": "0", "OLD": "x", "SAME": "y", STACKS: "where"})]
NEXT = [WorkerCommand(("true",), {"RANK": "1", "SAME": "y", "NEW": "z", STACKS: "where"})]

HELLO = Reusable(0, 1)


@dataclass
class Stage:
    """A node in round 1 of one worker, which this process plays."""

    reusable: ReusableWorkers
    path: str
    events: asyncio.Queue[Event]
    in_order: list[CollectiveFailed | WorkerLeft]
    """What waits for the exits before it."""
    workers: LocalWorkers
    complaints: list[str]
    sockets: list[socket.socket] = field(default_factory=list)

    def connect(self, *messages: RoundMessage) -> socket.socket:
        """Connect as a worker, and say these."""
        worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker.settimeout(TIMEOUT_S)
        worker.connect(self.path)
        self.sockets.append(worker)
        for message in messages:
            worker.send(ROUND_CODEC.encode(message))
        return worker

    def park(self, number: int) -> None:
        """Have real workers that wait for the next round."""
        commands = [WorkerCommand(("sleep", "1000"), dict(os.environ)) for _ in range(number)]
        self.workers.start(commands, own_outputs(number))
        for local_rank in range(number):
            self.workers.park(local_rank)

    async def event(self) -> Event:
        """Return the next event that the agent gets."""
        return await asyncio.wait_for(self.events.get(), TIMEOUT_S)


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Stage]:
    events, in_order = asyncio.Queue[Event](), list[CollectiveFailed | WorkerLeft]()
    tasks = Tasks()
    workers = LocalWorkers(secrets.token_hex(16), lambda *_: None, leave_nothing)
    complaints = list[str]()
    reusable = ReusableWorkers(
        workers,
        tasks,
        submit=events.put_nowait,
        submit_in_order=in_order.append,
        dismissed_within_s=1.0,
        complain=complaints.append,
    )
    made = Stage(reusable, reusable.listen(tmp_path, len(COMMANDS))[ROUNDS], events, in_order, workers, complaints)
    reusable.begin(1, COMMANDS)
    yield made
    for each in made.sockets:
        each.close()
    reusable.close()
    await tasks.cancel()


def received(worker: socket.socket) -> RoundMessage:
    return ROUND_CODEC.decode(worker.recv(PACKET_BYTES))


async def test_a_worker_leaves_and_gets_the_next_round(on: Stage, tmp_path: Path) -> None:
    worker = on.connect(HELLO)
    assert await on.event() == ReuseReported(0)
    on.reusable.carry_out(effects.LeaveRound())
    assert received(worker) == AskToLeave(1)
    worker.send(ROUND_CODEC.encode(Left(1)))
    assert await on.event() == WorkerLeft(0)
    on.reusable.begin(2, NEXT)
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        on.reusable.continue_in_round(0, out.fileno(), err.fileno())
    packet, files, _, _ = socket.recv_fds(worker, PACKET_BYTES, 2)
    changes = {"RANK": "1", "NEW": "z", "OLD": None, STACKS: "where"}  # it has taken the last one for itself
    assert ROUND_CODEC.decode(packet) == NextRound(2, changes)
    for name, file in zip(("out", "err"), files, strict=True):
        os.write(file, name.encode())
        os.close(file)
        assert (tmp_path / name).read_text() == name
    on.reusable.carry_out(effects.LeaveRound())
    assert received(worker) == AskToLeave(2), "it is in another round now"


STOPS = """
import os, signal, socket, sys
worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
worker.connect(sys.argv[1])
worker.send(sys.argv[2].encode())
os.kill(os.getpid(), signal.SIGSTOP)
print(worker.recv(1000).decode())
"""
"""A worker that a signal stops."""

pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.mark.slow
async def test_a_stopped_worker_is_waited_for_in_a_planned_end_alone(on: Stage) -> None:
    hello = '{"Reusable":{"local_rank":0,"round":1}}'
    command = [sys.executable, "-c", STOPS, on.path, hello]
    worker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert await on.event() == ReuseReported(0)
    await asyncio.to_thread(wait_until, "the worker is stopped", lambda: is_stopped(worker.pid))
    on.reusable.carry_out(effects.LeaveRound())
    assert await on.event() == WorkerRefuses(0, STOPPED)
    on.reusable.carry_out(effects.LeaveRound(planned=True))
    worker.send_signal(signal.SIGCONT)
    told, _ = await worker.communicate()
    assert ROUND_CODEC.decode(told) == AskToLeave(1, planned=True)


async def test_a_failed_collective_waits_for_the_exits_before_it(on: Stage) -> None:
    failed = Failed(1, "RuntimeError: closed", ("a line",))
    worker = on.connect(HELLO, failed, Left(1), Refusing(1, "it is busy"))
    assert [await on.event(), await on.event()] == [ReuseReported(0), WorkerRefuses(0, "it is busy")]
    failure, left = on.in_order
    assert isinstance(failure, CollectiveFailed)
    about = failure.diagnosis
    assert (failure.exit_code, about.error, about.pid) == (1, "RuntimeError: closed", os.getpid())
    assert left == WorkerLeft(0)
    worker.close()
    assert await on.event() == ReuseReported(0, able=False)


async def test_a_worker_that_repeats_itself_is_heard_once_in_a_round(on: Stage, tmp_path: Path) -> None:
    said: list[RoundMessage] = [Failed(1, "RuntimeError: closed", ()), Left(1)]
    worker = on.connect(HELLO, *said * 9, Refusing(1, "it is busy"))
    assert [await on.event(), await on.event()] == [ReuseReported(0), WorkerRefuses(0, "it is busy")]
    assert len(on.in_order) == 2
    on.reusable.begin(2, NEXT)
    with (tmp_path / "out").open("w") as out:
        on.reusable.continue_in_round(0, out.fileno(), out.fileno())
    for message in (Failed(2, "RuntimeError: again", ()), Left(2), Refusing(2, "it is busy")):
        worker.send(ROUND_CODEC.encode(message))
    await on.event()
    assert len(on.in_order) == 4, "it is another round"


@pytest.mark.parametrize(
    "said",
    [
        [Reusable(1, 1)],
        [Reusable(0, 7)],
        [Left(1)],
        [Failed(1, "RuntimeError: closed", ())],
        [AskToLeave(1)],
        [NextRound(2, {})],
    ],
    ids=["other rank", "other round", "unknown", "unknown too", "of ours", "of ours too"],
)
async def test_a_stranger_is_not_believed(on: Stage, said: list[RoundMessage]) -> None:
    on.connect(*said)
    on.connect(HELLO)
    assert await on.event() == ReuseReported(0)
    assert on.events.empty()


@pytest.mark.parametrize(
    ("said", "events"),
    [
        ([Aborting(1), Aborted(1, 0.5)], [WorkerAborts(0), WorkerAborts(0, 0.5)]),
        ([Aborting(7), Left(0), Failed(2, "x", ()), Refusing(2, "x")], []),
    ],
    ids=["how long it aborts NCCL", "of another round"],
)
async def test_what_a_worker_says_of_its_round_is_told_and_of_another_one_counts_for_nothing(
    on: Stage, said: list[RoundMessage], events: list[Event]
) -> None:
    on.connect(HELLO, *said, Left(1))
    assert [await on.event() for _ in range(len(events) + 2)] == [ReuseReported(0), *events, WorkerLeft(0)]
    assert on.events.empty()
    assert not on.in_order


async def test_where_no_socket_can_be_made_no_worker_stays(on: Stage, tmp_path: Path) -> None:
    assert on.reusable.listen(tmp_path / "missing", len(COMMANDS)) == {}


async def leave_nothing(_: Sequence[EndedWorker]) -> None:
    """Take workers that have left nothing behind."""


async def reported() -> None:
    """Wait for the reports of exits, of which there are none here."""


KEPT_BY_THE_KERNEL = UnkillableError([4_711], 60.0)


def hang_in_the_kernel(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let killing fail so often, as it does while a process hangs in a driver; no test can make one that does."""
    kill_marked, left = process_tree.kill_marked, [KEPT_BY_THE_KERNEL] * times

    def kill(mark: str | None, groups: frozenset[int]) -> None:
        if left:
            raise left.pop()
        kill_marked(mark, groups)

    monkeypatch.setattr(process_tree, "kill_marked", kill)


@pytest.mark.slow
async def test_what_cannot_be_killed_is_named_and_killed_again_before_a_round(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    on.park(1)
    hang_in_the_kernel(monkeypatch, times=2)
    on.reusable.carry_out(effects.Dismiss((0,)))
    await on.reusable.dismissals.await_all(reported)
    assert on.complaints == [str(KEPT_BY_THE_KERNEL)] * 2
    assert not on.workers.pids, "the next round begins without them"


@pytest.mark.slow
async def test_a_round_waits_for_all_that_are_dismissed_also_for_one_that_is_dismissed_last(on: Stage) -> None:
    on.park(2)
    lost = [1]

    async def lose_another() -> None:
        if lost:
            on.reusable.carry_out(effects.Dismiss((lost.pop(),)))

    on.reusable.carry_out(effects.Dismiss((0,)))
    await on.reusable.dismissals.await_all(lose_another)
    assert not on.workers.pids


@pytest.mark.slow
async def test_a_sweep_goes_on_with_what_was_dismissed_and_cannot_be_killed(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    on.park(1)
    hang_in_the_kernel(monkeypatch, times=1)
    on.reusable.carry_out(effects.Dismiss((0,)))
    await on.reusable.dismissals.await_unless_unkillable()
    assert on.complaints == [str(KEPT_BY_THE_KERNEL)]
    await on.workers.sweep()
    assert not on.workers.pids
