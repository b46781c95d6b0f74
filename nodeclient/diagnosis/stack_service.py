"""Samples this node's workers for the coordinator: their stacks, and their arrivals in collectives.

The stacks of all workers show which one the others wait for in a hang. The times of arrival show which one is slow.
`workerlib.responder` answers in each worker, and describes the connection. A worker whose interpreter is blocked does
not answer: a signal then makes faulthandler write its stacks into a pipe. Without even that, /proc still has its state.

A sample takes a quarter of a second, most of it to measure CPU use, and half a second for a silent worker. Two samples,
by which the coordinator finds a hang, take less than a second.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from coordinatord.hints.seen_worker import TRACED
from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals, WorkerArrivals
from coordinatord.protocol.fields import LINE_MAX, STEP_MAX
from coordinatord.protocol.stack_messages import (
    BRIEF_BYTES_MAX,
    PACKED_BYTES_MAX,
    WAITS_FOR_MAX,
    AskStacks,
    StackOrigin,
    Stacks,
    WorkerStacks,
    pack_stacks,
)
from coordinatord.protocol.text import clip
from coordinatord.runtime.tasks import Tasks, in_thread
from nodeclient.diagnosis.stack_text import (
    MalformedAnswerError,
    WorkerAnswer,
    read_answer,
    read_arrivals,
    read_dump,
    read_hello,
)
from nodeclient.host.awaited import awaited_outside
from nodeclient.host.process_state import HALTED, ProcessState, catches, sample_process, state_between
from nodeclient.host.syscalls import pidfd_open, pidfd_send_signal
from nodeclient.host.worker_socket import Connection, WorkerSocket, receive_packet
from workerlib.contract.env import STACKS
from workerlib.responder import ARRIVALS, DESCRIPTORS_MAX, PACKET_BYTES, WHERE

ANSWER_WITHIN_S = 0.35
"""The timeout of an answer. A training worker answers in some 20 ms, and an idle one in a tenth of a second."""

DUMP_WITHIN_S = 0.5
"""The timeout of faulthandler. It begins at once, unless the process is stopped or waits for a disk."""

QUIET_S = 0.05
"""The pause after which faulthandler's output is complete: it writes without pauses."""

MEASURED_S = 0.2
"""The shortest time over which CPU use is measured: the kernel counts it in hundredths of a second. An answer is
awaited for at least as long, even if its question was sent for an earlier sample: a sample takes this time anyway."""

NO_RESPONDER = (
    "it does not answer: its script has called nothing of workerlib yet and runs without --preload, or has become "
    "another program; start nodeclient with --preload torch, or try py-spy dump --pid PID on its host"
)

NO_SUCH_ROUND = "this node has no workers of that round"

DUMP_BYTES_MAX = 256 * 1024
"""The limit of faulthandler's output."""

ARRIVALS_WITHIN_S = 2.0
"""The timeout of arrivals. A training worker answers in a tenth of a second, and nothing else waits for them."""

QUESTIONS_MAX = 4
"""The limit of a worker's unanswered questions: a stopped worker gets no more."""


class _Question(NamedTuple):
    """A question to a worker that is not answered yet."""

    text: bytes
    answer: asyncio.Future[bytes]
    """Gets an empty answer if the process ends."""
    asked_at: float
    """When it was sent, by the clock of the event loop."""


@dataclass(slots=True, eq=False)
class _Responder:
    """The process that answers for a worker: the worker itself, or a child such as the Python that a shell started."""

    connection: Connection
    pidfd: int
    """A descriptor of the process, so that no later process with its id gets the signal."""
    signum: int
    """The signal that makes the process dump its stacks; 0 without one."""
    pipe: FileIO
    """The pipe of the process's dumps."""
    questions: deque[_Question] = field(default_factory=deque)
    """The unanswered questions, in the order of its answers."""


class StackService:
    """Samples the workers of one round at a time; all methods are for the running event loop."""

    def __init__(self, pid_of: Callable[[int], int], tasks: Tasks) -> None:
        """Begin without workers; `pid_of` returns the process id of a local rank, 0 if there is none."""
        self._pid_of = pid_of
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._round = ("", 0)
        self._ranks = range(0)
        """The ranks of this node's workers in the round."""
        self._store_port = 0
        self._socket = WorkerSocket("stacks", Connection, self._receive)
        self._responders: dict[int, _Responder] = {}
        """The processes that answer, by local rank."""
        self._readings: dict[int, asyncio.Future[str]] = {}
        """The threads that find out what processes wait for, by process id."""

    def listen(self, folder: Path, run: str, number: int, ranks: range, store_port: int = 0) -> dict[str, str]:
        """Begin a round with these ranks; return the variable by which workers connect, or none if they cannot.

        At `store_port` rank 0 serves torch's store: a worker that waits for it waits for nothing outside the job.
        """
        self.close()
        self._round, self._ranks, self._store_port = (run, number), ranks, store_port
        try:
            return {STACKS: self._socket.listen(folder, len(ranks))}
        except OSError:  # without the socket, there is only /proc
            return {}

    def read(self, wanted: AskStacks | AskArrivals, respond: Callable[..., None]) -> None:
        """Sample some workers, or read their last arrivals in collectives, and respond later."""
        if isinstance(wanted, AskStacks):
            self._tasks.spawn(self._read_stacks(wanted, respond), name="stacks")
        else:
            self._tasks.spawn(self._read_arrivals(wanted, respond), name="arrivals")

    def close(self) -> None:
        """Drop the workers of the round."""
        for local_rank in list(self._responders):
            self._forget(local_rank)
        self._socket.close()

    # Connections of workers

    def _register(self, connection: Connection) -> None:
        """Read the first packet of a connection, which names its worker; a worker's latest connection counts."""
        pipes: list[int] = []
        try:
            packet, pipes, _, _ = socket.recv_fds(connection.socket, PACKET_BYTES, DESCRIPTORS_MAX)
            local_rank, signum = read_hello(packet)
            expected = 0 <= local_rank < len(self._ranks) and len(pipes) == 1
            pidfd = pidfd_open(connection.pid) if expected and stat.S_ISFIFO(os.fstat(pipes[0]).st_mode) else None
        except (OSError, MalformedAnswerError):
            pidfd = None
        if pidfd is None:
            self._socket.forget(connection)
            for pipe in pipes:
                os.close(pipe)
            return
        os.set_blocking(pipes[0], False)
        self._forget(local_rank)
        connection.local_rank = local_rank
        self._responders[local_rank] = _Responder(connection, pidfd, signum, FileIO(pipes[0], "rb"))

    def _receive(self, connection: Connection) -> None:
        if connection.local_rank is None:
            self._register(connection)
            return
        responder = self._responders[connection.local_rank]
        packet = receive_packet(connection.socket)
        if packet is None:
            return
        if not packet:
            self._forget(connection.local_rank)
        elif responder.questions:
            responder.questions.popleft().answer.set_result(packet)

    def _forget(self, local_rank: int) -> None:
        """Close the connection of a worker, if it has one, and answer its questions."""
        responder = self._responders.pop(local_rank, None)
        if responder is not None:
            for question in responder.questions:
                question.answer.set_result(b"")
            os.close(responder.pidfd)
            responder.pipe.close()
            self._socket.forget(responder.connection)

    # Questions to workers

    async def _read_stacks(self, wanted: AskStacks, respond: Callable[[Stacks], None]) -> None:
        if (wanted.run, wanted.round) != self._round:
            respond(Stacks(wanted.request, (), NO_SUCH_ROUND))
            return
        ranks = self._ranks  # if another round begins meanwhile, the same processes get other ranks
        local_ranks = [local_rank for local_rank in wanted.local_ranks if local_rank < len(ranks)]
        found = await asyncio.gather(*(self._sample(each, ranks[each], brief=wanted.brief) for each in local_ranks))
        respond(Stacks(wanted.request, tuple(found), ""))

    async def _read_arrivals(self, wanted: AskArrivals, respond: Callable[[Arrivals], None]) -> None:
        began_at = self._loop.time()
        if (wanted.run, wanted.round) != self._round:
            respond(Arrivals(wanted.request, began_at, 0.0, (), NO_SUCH_ROUND))
            return
        present = [local_rank for local_rank in wanted.local_ranks if local_rank in self._responders]
        ranks = [self._ranks[local_rank] for local_rank in present]  # those of the round that was asked about
        question = ARRIVALS + str(wanted.most).encode()
        asked = (self._ask(self._responders[local_rank], question, ARRIVALS_WITHIN_S) for local_rank in present)
        packets = await asyncio.gather(*asked)
        # One moment for the ages of all workers: the coordinator takes the times of one host as comparable.
        now, recorders_now = self._loop.time(), time.time()  # noqa: TID251 - the recorder's clock
        found = tuple(_arrivals(rank, packet, recorders_now) for rank, packet in zip(ranks, packets, strict=True))
        respond(Arrivals(wanted.request, now, now - began_at, found, ""))

    async def _sample(self, local_rank: int, rank: int, *, brief: bool) -> WorkerStacks:
        """Return the stacks and the state of one worker; with `brief`, only the stack of its main thread."""
        responder = self._responders.get(local_rank)
        pid = self._pid_of(local_rank) if responder is None else responder.connection.pid
        began_at, before = self._loop.time(), sample_process(pid) if pid else None
        packet: bytes | None = None
        if responder is not None and before is not None and before.state not in HALTED:
            packet = await self._ask(responder, WHERE, ANSWER_WITHIN_S)
            if packet is not None:  # measure from here on, because the answer has used CPU time
                began_at, before = self._loop.time(), sample_process(pid)
        await asyncio.sleep(began_at + MEASURED_S - self._loop.time())
        after = sample_process(pid) if before is not None else None
        took_s = self._loop.time() - began_at
        used_s = 0.0 if before is None or after is None else after.cpu_s - before.cpu_s
        answer = await self._inspect(responder, packet, after)
        shown = answer.threads[:1] if brief else answer.threads
        waits_for = clip(await self._awaited_by(pid, after), WAITS_FOR_MAX) if after is not None else ""
        # In a brief sample, the stack shares its limit only with `stands_at`; in another one, with two more parts.
        most = BRIEF_BYTES_MAX if brief else PACKED_BYTES_MAX - len(answer.places) - len(waits_for.encode())
        return WorkerStacks(
            rank=rank,
            origin=answer.origin,
            stacks=pack_stacks(shown, most - len(answer.stands_at.encode())),
            state=TRACED if answer.is_debugged else clip(state_between(before, after), 16),
            waits_in=clip(after.waits_in, 64) if after is not None else "",
            cpus=round(max(0.0, used_s) / took_s, 2),
            collective=answer.collective,
            problem=answer.problem if after is not None else "its process has ended",
            pid=pid,
            io_bytes=min(after.io_bytes, STEP_MAX) if after is not None else 0,
            network_bytes=answer.network_bytes,
            members=answer.members,
            places=answer.places,
            stands_at=answer.stands_at,
            waits_for=waits_for,
        )

    async def _awaited_by(self, pid: int, state: ProcessState) -> str:
        """Return the thing outside its job that a process waits for; empty if the kernel does not answer in time.

        A process that hangs in the kernel may hold the lock of its address space: who reads its memory then hangs too.
        """
        responders = {responder.connection.pid for responder in self._responders.values()}
        started = {self._pid_of(local_rank) for local_rank in range(len(self._ranks))} - {0}
        if (reading := self._readings.get(pid)) is None:
            read = partial(awaited_outside, pid, state.waits_in, responders | started, self._store_port)
            try:
                reading = self._readings[pid] = in_thread(read, "what is awaited")
            except OSError:  # the system has no free thread
                return ""
            reading.add_done_callback(lambda _: self._readings.pop(pid))
        done, _ = await asyncio.wait({reading}, timeout=ANSWER_WITHIN_S)
        return reading.result() if done else ""

    async def _inspect(
        self, responder: _Responder | None, packet: bytes | None, state: ProcessState | None
    ) -> WorkerAnswer:
        """Return the stacks in the packet; without one, send the signal that makes the worker dump its stacks."""
        if responder is None:
            return WorkerAnswer(problem=NO_RESPONDER)
        if packet == b"":
            return WorkerAnswer(problem="its process has ended")
        try:
            if packet is not None:
                return replace(read_answer(packet, _folder()), origin=StackOrigin.WORKER)
            if state is None or state.state in HALTED:
                return WorkerAnswer(problem=f"it cannot answer: its process is {state.state if state else 'gone'}")
            answer = read_dump((await self._dump(responder)).decode(errors="replace"), _folder())
        except (OSError, MalformedAnswerError) as error:
            return WorkerAnswer(problem=clip(str(error), LINE_MAX))
        no_answer = WorkerAnswer(problem="it does not answer")
        return replace(answer, origin=StackOrigin.SIGNAL) if answer.threads else no_answer

    async def _ask(self, responder: _Responder, text: bytes, within_s: float) -> bytes | None:
        """Return the answer to a question; None if it times out.

        A question that still waits for its answer is not repeated, and its time counts from when it was sent. So the
        second sample of a worker that cannot answer takes less time than the first one.
        """
        question = next((question for question in responder.questions if question.text == text), None)
        if question is None:
            if len(responder.questions) >= QUESTIONS_MAX:
                return None
            try:
                responder.connection.socket.send(text, socket.MSG_NOSIGNAL)
            except OSError:  # it has not read the earlier questions
                return None
            question = _Question(text, self._loop.create_future(), self._loop.time())
            responder.questions.append(question)
        try:
            async with asyncio.timeout(max(MEASURED_S, question.asked_at + within_s - self._loop.time())):
                return await asyncio.shield(question.answer)
        except TimeoutError:
            return None

    async def _dump(self, responder: _Responder) -> bytes:
        """Send the signal, and return faulthandler's text; empty if it times out."""
        signum = responder.signum
        is_harmless = signal.SIGRTMIN <= signum <= signal.SIGRTMAX and catches(responder.connection.pid, signum)
        if responder.pipe.closed or not is_harmless:  # a process that does not catch a signal may die of it
            return b""
        _read_all(responder.pipe)  # drops the text that came too late for the last request
        dump = b""
        pidfd_send_signal(responder.pidfd, signum)
        until = self._loop.time() + DUMP_WITHIN_S
        while self._loop.time() < until and len(dump) < DUMP_BYTES_MAX:
            more = _read_all(responder.pipe)
            if dump and not more:
                break
            dump += more
            await asyncio.sleep(QUIET_S)
        return dump


def _arrivals(rank: int, packet: bytes | None, now_s: float) -> WorkerArrivals:
    """Return the arrivals in a worker's answer, with their ages at `now_s`; none without an answer."""
    try:
        return WorkerArrivals(rank, read_arrivals(packet or b"", now_s))
    except MalformedAnswerError:
        return WorkerArrivals(rank, ())


def _folder() -> str:
    """Return the workers' working directory; the root if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return "/"


def _read_all(pipe: FileIO) -> bytes:
    """Return the bytes in a pipe; none if it was closed at its worker's end."""
    return b"" if pipe.closed else pipe.read(DUMP_BYTES_MAX) or b""
