"""Nodes that keep state, played by this process: real sockets, real memory, and worker processes that really train.

A `Keep` stands for the agents of all nodes: each worker has a node of its own. The choice of the step from which a
round resumes is made here in the simplest way, the newest one that is whole, so that only workerlib is tested.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from tests.support.environments import environment
from tests.support.programs import TIMEOUT_S
from workerlib.contract.arena import Arena, ArenaSizes, Commit
from workerlib.contract.channel_messages import (
    BEFORE_NAMED,
    CODEC,
    NOTHING,
    AskRestore,
    Comparison,
    FirstState,
    HaltAt,
    Message,
    NotSaved,
    Part,
    RefusedMemory,
    Reserve,
    Reserved,
    ResumeFrom,
    Saved,
    SaveNow,
)
from workerlib.contract.env import KEEP
from workerlib.contract.packets import PACKET_BYTES

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch._dynamo", "tests.support.kept_checkpoint", "workerlib.keeping.keeper", "numpy"])


class Gone:
    """The connection of a worker has ended."""


@dataclass
class Node:
    """The agent of one worker."""

    path: Path
    file: int | None = None
    arena: Arena | None = None
    connection: socket.socket | None = None
    messages: list[Message | Gone] = field(default_factory=list)


class Keep:
    """The memory of some nodes, and the choice of a step."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder = folder
        self.nodes = [Node(folder / f"keep-{number}") for number in range(nodes)]
        self.arrived = threading.Condition()
        self.refuse = False
        self.gives = threading.Event()
        """Whether workers that ask for memory get it at once."""
        self.gives.set()
        self.alike = True
        """Whether the states of all ranks are the same after the first step."""
        self.resume: ResumeFrom = NOTHING
        self._files: list[int] = []
        self._threads: list[threading.Thread] = []
        self._listeners: list[socket.socket] = []
        for node in self.nodes:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(str(node.path))
            listener.listen()
            self._listeners.append(listener)
            self._start(self._accept, node, listener)

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self, node: Node, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self._serve(node, connection)

    def _serve(self, node: Node, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            node.connection = connection
            node.messages.clear()
            while packet := connection.recv(PACKET_BYTES):
                self._take(node, connection, CODEC.decode(packet))
        with self.arrived:
            node.messages.append(Gone())
            self.arrived.notify_all()

    def _take(self, node: Node, connection: socket.socket, message: Message) -> None:
        match message:
            case Reserve(_, small) if self.refuse:
                node.file, node.arena = _arena(node, ArenaSizes.at_least(0, small))
                socket.send_fds(connection, [CODEC.encode(RefusedMemory("--keep-memory is too small"))], [node.file])
            case Reserve(generation, small):
                self.gives.wait(TIMEOUT_S)
                node.file, node.arena = _arena(node, ArenaSizes.at_least(generation, small))
                socket.send_fds(connection, [CODEC.encode(Reserved())], [node.file])
            case FirstState():
                connection.send(CODEC.encode(Comparison(alike=self.alike)))
            case AskRestore():
                socket.send_fds(connection, [CODEC.encode(self.resume)], self._files)
        with self.arrived:
            node.messages.append(message)
            self.arrived.notify_all()

    def choose(self) -> ResumeFrom:
        """Resume the next round from the newest whole step, and protect it; return the answer for the workers."""
        held = [(node.file, commit, big) for node in self.nodes for commit, big in _commits(node)]
        steps = sorted({(commit.round, commit.step) for _, commit, big in held if big}, reverse=True)
        for at in steps:
            here = [holder for holder in held if (holder[1].round, holder[1].step) == at]
            bigs = {commit.shard: (file, commit) for file, commit, big in here if big}
            shards = next(iter(bigs.values()))[1].shards
            done = [commit.rank for _, commit, big in here if commit.has_small or not (big or commit.pending)]
            if len(bigs) == shards and done:
                return self._send_resume(at, bigs, here)
        self._offer([])
        self.resume = NOTHING
        return NOTHING

    def _offer(self, files: list[int]) -> None:
        """Hold these files for the workers that ask, even if a node gets a larger one before all have asked."""
        held, self._files = self._files, [os.dup(file) for file in files]
        for file in held:
            os.close(file)

    def _send_resume(self, at: tuple[int, int], bigs: dict[int, Any], here: list[Any]) -> ResumeFrom:
        parts: dict[tuple[int, int], Part] = {}
        for file, commit, big in here:
            old = parts.get((file, commit.rank), Part(commit.rank, big=False, small=False, pending=False))
            is_source = big and bigs[commit.shard][0] == file
            is_small = commit.has_small or not (big or commit.pending)
            parts[file, commit.rank] = Part(
                commit.rank, old.big or is_source, old.small or is_small, old.pending or commit.pending
            )
        for node in self.nodes:
            if node.arena is not None:
                node.arena.protect([at])
        world_size = next(iter(bigs.values()))[1].world_size
        self.resume = ResumeFrom(*at, world_size, tuple(parts.values()))
        self._offer([file for file, _ in parts])
        return self.resume

    def save(self, *numbers: int) -> list[Saved | NotSaved | Gone]:
        """Have workers save, as at the break of a round; return the answer of each, or `Gone`."""
        for number in numbers:
            connection = self.nodes[number].connection
            with suppress(OSError):
                assert connection is not None
                connection.send(CODEC.encode(SaveNow(1)))
        answers: list[Saved | NotSaved | Gone] = []
        with self.arrived:
            for node in (self.nodes[number] for number in numbers):
                self.arrived.wait_for(lambda: self._answer(node), TIMEOUT_S)  # noqa: B023 - it is called at once
                answer = self._answer(node)
                assert answer is not None, node.messages
                answers.append(answer)
        return answers

    def halt(self, number: int, step: int) -> list[Saved | NotSaved | Gone]:
        """Have a worker stand still after a step; return its answer, of which there is none before one is named."""
        connection = self.nodes[number].connection
        assert connection is not None
        connection.send(CODEC.encode(HaltAt(1, step)))
        if step == BEFORE_NAMED:
            return []
        with self.arrived:
            assert self.arrived.wait_for(lambda: self._answer(self.nodes[number]), TIMEOUT_S), self.nodes[
                number
            ].messages
        return [answer for answer in [self._answer(self.nodes[number])] if answer is not None]

    @staticmethod
    def _answer(node: Node) -> Saved | NotSaved | Gone | None:
        for message in node.messages:
            if isinstance(message, Gone) or (isinstance(message, (Saved, NotSaved)) and message.asked):
                return message
        return None

    def await_message(self, number: int, *kinds: type[Any]) -> Message | Gone:
        """Wait until a worker has sent a message of these kinds; return the first."""
        node = self.nodes[number]
        with self.arrived:
            assert self.arrived.wait_for(
                lambda: any(isinstance(message, kinds) for message in node.messages), TIMEOUT_S
            ), node.messages
            found: list[Message | Gone] = [message for message in node.messages if isinstance(message, kinds)]
            return found[0]

    def commits(self, number: int) -> list[Commit]:
        """Return the whole commits that a node keeps."""
        return [commit for commit, _ in _commits(self.nodes[number])]

    def lend(self, number: int, sizes: ArenaSizes) -> Arena:
        """Give a worker the memory of one that has ended, as a node more; return what is in it."""
        lender = Node(self._folder / "lender")
        lender.file, lender.arena = _arena(lender, sizes)
        self.nodes.append(lender)
        connection = self.nodes[number].connection
        assert connection is not None
        socket.send_fds(connection, [CODEC.encode(Reserved(lent=True))], [lender.file])
        return lender.arena

    def lose(self, number: int) -> None:
        """Lose the memory of a node, as if its host was gone."""
        node = self.nodes[number]
        if node.file is not None:
            os.close(node.file)
        node.file = node.arena = None

    def close(self) -> None:
        """Close all sockets and free all memory."""
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        self._offer([])
        for number in range(len(self.nodes)):
            self.lose(number)


def _arena(node: Node, sizes: ArenaSizes) -> tuple[int, Arena]:
    if node.file is not None and node.arena is not None and node.arena.sizes.has_room_for(sizes):
        return node.file, node.arena
    if node.file is not None:
        os.close(node.file)
    file = os.memfd_create("kept")
    os.ftruncate(file, sizes.total)
    return file, Arena.create(file, sizes)


def _commits(node: Node) -> Iterator[tuple[Commit, bool]]:
    if node.arena is not None:
        for places, big in ((node.arena.generations, True), (node.arena.smalls, False)):
            for place in places:
                if (commit := place.read()) is not None:
                    yield commit, big


@contextmanager
def workers(
    keep: Keep, work: Callable[..., None], world_size: int, round_: int, *arguments: Any, **named: Any
) -> Iterator[list[ForkServerProcess]]:
    """Start the workers of a round, each on a node of its own; end those that are left."""
    with socket.socket() as reserved:
        # Bound but not listening, so that nobody else gets the port and rank 0 still can.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        port = reserved.getsockname()[1]
        started = []
        for rank in range(world_size):
            environ = environment(rank, world_size, round_, port).to_environ()
            environ |= {KEEP: str(keep.nodes[rank].path), "GLOO_SOCKET_IFNAME": "lo"}
            process = FORKED.Process(target=_work, args=(environ, partial(work, *arguments, **named)))
            process.start()
            started.append(process)
        try:
            yield started
        finally:
            for process in started:
                process.kill()
                process.join()
                process.close()


def play(keep: Keep, work: Callable[..., None], world_size: int, round_: int, *arguments: Any, **named: Any) -> None:
    """Play a round to its end, which all of its workers reach without an error."""
    with workers(keep, work, world_size, round_, *arguments, **named) as started:
        for process in started:
            process.join(TIMEOUT_S)
        assert [process.exitcode for process in started] == [0] * world_size


def _work(environ: dict[str, str], work: Callable[[], None]) -> None:
    os.environ.update(environ)
    torch.set_num_threads(1)
    work()
