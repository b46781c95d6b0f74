"""Nodes that keep state, and workers that have them keep it; both live in the test's own process."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from coordinatord.protocol.kept_state import Holding, KeptSource, PersistOffer, Resume, WantedParts
from coordinatord.protocol.messages import Observed, Phase
from coordinatord.runtime.tasks import Tasks
from nodeclient.core.agent_settings import KEEP_TIMEOUT_S
from nodeclient.core.effects import Restore
from nodeclient.core.events import Event
from nodeclient.keeping.disk.persist_settings import PersistSettings
from nodeclient.keeping.resources import KeepSettings
from nodeclient.keeping.state_keeper import StateKeeper
from tests.support.programs import TIMEOUT_S
from workerlib.contract.arena import Arena, Commit, Place
from workerlib.contract.channel_messages import (
    CODEC,
    AskRestore,
    Hello,
    Message,
    Part,
    Reserve,
    ResumeFrom,
    Saved,
)
from workerlib.contract.env import KEEP
from workerlib.contract.packets import PACKET_BYTES

RUN = "r-1"

MEMORY_BYTES = 100_000_000

BIG = bytes(range(256)) * 12_000
"""Three megabytes, so that a part is more than one chunk."""

SMALL = b"small state" * 100

LOOK_AGAIN_S = 0.01

UNUSED_PORT = 1
"""A port at which nobody listens, and which the kernel gives to nobody either."""


class Hanging:
    """A call of the system that hangs until it is healed: no real disk and no memory hangs on demand."""

    def __init__(self, name: str) -> None:
        self.begins, self.heal = threading.Event(), threading.Event()
        self.calls: list[tuple[Any, ...]] = []
        """The arguments of all calls."""
        self._call = getattr(os, name)

    def __call__(self, *arguments: Any) -> Any:
        """Hang, and then call the system."""
        self.calls.append(arguments)
        self.begins.set()
        self.heal.wait(TIMEOUT_S)
        return self._call(*arguments)


class KeepingNode:
    """One node that keeps state."""

    def __init__(
        self,
        name: str,
        folder: Path,
        tasks: Tasks,
        *,
        workers: int = 1,
        memory: int = MEMORY_BYTES,
        patience_s: float = 0,
        disk: Path | None = None,
        copy_rate: float = 0,
        command: str = "",
        named: bool = True,
    ) -> None:
        self.name = name
        self.events: list[Event] = []
        self.texts: list[str] = []
        self.workers = workers
        self.round = 0
        self._folder = folder
        self._changed = asyncio.Event()
        self._living: list[KeepingWorker] = []
        settings = KeepSettings(memory, KEEP_TIMEOUT_S, patience_s, copy_rate=copy_rate)
        persist = None if disk is None else PersistSettings(disk, "job", PersistOffer(600, 2), command, named)
        self.keeper = StateKeeper(
            settings, name, workers, submit=self._submit, notify=self._notify, tasks=tasks, persist=persist
        )

    def begin(self, round_number: int, resume: Resume | None = None, run: str = RUN) -> str:
        """Begin a round; return where its workers connect."""
        self.round = round_number
        self.keeper.carry_out(Restore(run, round_number, resume))
        folder = self._folder / f"{self.name}-{run}-{round_number}"
        folder.mkdir()
        return self.keeper.listen(folder, round_number)[KEEP]

    def start(self, round_number: int, resume: Resume | None = None) -> list[KeepingWorker]:
        """Begin a round with all of its workers, which have said hello."""
        path = self.begin(round_number, resume)
        return [self.worker(path, rank, rank, self.workers) for rank in range(self.workers)]

    def worker(self, path: str, local_rank: int = 0, rank: int = 0, world_size: int = 1) -> KeepingWorker:
        """Return a worker that has said hello."""
        worker = KeepingWorker(path, local_rank, self.round, rank, world_size)
        self._living.append(worker)
        return worker

    def close(self) -> None:
        """End it with its workers."""
        self.keeper.close()
        for worker in self._living:
            worker.die()

    def holding(self, *, workers: bool = False, run: str = RUN) -> Holding | None:
        """Return what it reports, with or without living workers."""
        phase = Phase.RUNNING if workers else Phase.STOPPED
        return self.keeper.complete(Observed(run, self.round, phase, 1, False, None, 0.0, True)).kept

    def reported(self, *, workers: bool = False, run: str = RUN) -> Holding:
        """Return what it reports, which must be something."""
        holding = self.holding(workers=workers, run=run)
        assert holding is not None
        return holding

    def source(self, *parts: WantedParts) -> KeptSource:
        """Return it as a source of parts."""
        offer = self.keeper.offer
        assert offer is not None
        return KeptSource(self.name, "127.0.0.1", offer.port, offer.key, parts)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._changed.clear()
                with suppress(TimeoutError):  # threads and workers change what is looked at too, and do not say so
                    await asyncio.wait_for(self._changed.wait(), LOOK_AGAIN_S)

    async def reports(
        self, condition: Callable[[Holding], object], *, workers: bool = False, run: str = RUN
    ) -> Holding:
        """Wait until what it reports meets a condition, and return that: it may be another a moment later."""
        found: list[Holding] = []

        def look() -> bool:
            found[:] = [holding] if (holding := self.holding(workers=workers, run=run)) is not None else []
            return any(map(condition, found))

        await self.until(look)
        return found[0]

    async def damage(self, worker: KeepingWorker, step: int) -> None:
        """Flip a bit of the big state of a step, once its digest is noted."""
        assert worker.arena is not None
        read = ((place, place.read()) for place in worker.arena.generations)
        place, commit = next((place, commit) for place, commit in read if commit is not None and commit.step == step)
        await self.until(lambda: place.digest(commit) is not None)
        place.data[commit.length // 2] ^= 4

    def _submit(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def _notify(self, _: object, text: str, __: str) -> None:
        self.texts.append(text)
        self._changed.set()


class KeepingWorker:
    """One worker, as far as its node sees it."""

    def __init__(self, path: str, local_rank: int, round_number: int, rank: int, world_size: int) -> None:
        self.local_rank, self.rank, self.round, self.world_size = local_rank, rank, round_number, world_size
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(path)
        self.arena: Arena | None = None
        self.send(Hello(local_rank, round_number))

    def send(self, message: Message) -> None:
        """Send a packet."""
        self.socket.send(CODEC.encode(message))

    async def receive(self) -> tuple[Message, list[int]]:
        """Return the next packet, with its descriptors."""
        packet, fds, _, _ = await asyncio.to_thread(socket.recv_fds, self.socket, PACKET_BYTES, 64)
        return CODEC.decode(packet), fds

    async def reserve(
        self, big: int = len(BIG), small: int = len(SMALL), *, shard: int = 0, shards: int = 1
    ) -> Message:
        """Ask for an arena."""
        self.send(Reserve(big, small, shard, shards))
        message, fds = await self.receive()
        if fds:
            self.attach(fds)
        return message

    def attach(self, fds: list[int]) -> Arena:
        """Take the arena that has come with a packet."""
        [file] = fds
        self.arena = Arena.attach(file, writable=True)
        os.close(file)
        return self.arena

    def save(self, step: int, big: bytes | None = BIG, small: bytes | None = SMALL, flags: int = 0) -> None:
        """Save states as of a step."""
        assert self.arena is not None
        if big is not None:
            self.fill(self.arena.begin_generation(step), step, big, flags)
            self.send(Saved(step, 0.25, len(big), 0))
        if small is not None:
            self.fill(self.arena.begin_small(), step, small, flags)

    def fill(self, place: Place | None, step: int, data: bytes, flags: int = 0, shards: int = 1) -> None:
        """Write a state to a place that was begun."""
        assert self.arena is not None
        assert place is not None
        place.data[: len(data)] = data
        serial = self.arena.newest_serial() + 1
        place.commit(Commit(step, self.round, len(data), self.rank, self.world_size, 0, shards, serial, flags))

    async def resume(self) -> tuple[ResumeFrom, dict[tuple[int, bool], bytes]]:
        """Ask for what the round resumes from; return it with the data by rank and kind."""
        self.send(AskRestore())
        found: dict[tuple[int, bool], bytes] = {}
        while True:
            message, fds = await self.receive()
            assert isinstance(message, ResumeFrom)
            for part, file in zip(message.parts, fds, strict=True):
                found |= _read(message, part, file)
            if not message.more:
                return message, found

    def die(self) -> None:
        """End as a process does."""
        self.socket.close()


def _read(resume: ResumeFrom, part: Part, file: int) -> dict[tuple[int, bool], bytes]:
    arena = Arena.attach(file, writable=False)
    os.close(file)
    found = {}
    for big, places in ((True, arena.generations), (False, arena.smalls)):
        for place in places:
            commit = place.read()
            if commit is not None and (commit.round, commit.step) == (resume.round, resume.step):
                assert commit.rank == part.rank
                found[part.rank, big] = bytes(place.data[: commit.length])
    return found


def a_resume(round_number: int, step: int, *sources: KeptSource, complete: bool = True) -> Resume:
    return Resume(round_number, step, 1, 1, sources, complete, redone=0)


def wanted(rank: int = 0, *, big: bool = True, small: bool = True) -> WantedParts:
    return WantedParts(rank, 1, big, small)


async def holder(node: KeepingNode, *, flags: int = 0, small: bytes | None = SMALL) -> KeepingWorker:
    """Have a node hold step 7 of rank 0."""
    worker = node.worker(node.begin(1))
    await worker.reserve()
    worker.save(7, small=small, flags=flags)
    await node.reports(lambda holding: holding.save_s is not None)
    node.events.clear()
    return worker


@asynccontextmanager
async def keeping_nodes(folder: Path, *names: str, **options: Any) -> AsyncIterator[list[KeepingNode]]:
    """Have nodes that keep state; an error in any of their tasks fails the test."""
    tasks = Tasks()
    nodes = [KeepingNode(name, folder, tasks, **options) for name in names]
    try:
        yield nodes
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over.set_result(None)
        await tasks.guard(over)
    finally:
        await tasks.cancel()
        for node in nodes:
            node.close()
