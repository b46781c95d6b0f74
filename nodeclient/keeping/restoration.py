"""Gets the parts that the workers of a round resume from, and sends them to each worker that asks for them.

A part is the state that one rank has kept of the step. Parts come from this node, from other nodes or from the disk. If
one cannot be had, the workers get none and the coordinator chooses another step, because all nodes of a round must
resume from the same one. `Restoration` gets the parts, and `ResumeAnswers` has the conversation with the workers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.kept_state import KeptSource, Restoring, Resume, WantedParts
from coordinatord.protocol.text import redone_words
from nodeclient.core.effects import Level
from nodeclient.core.events import KeptChanged
from nodeclient.keeping.disk.disk_thread import DiskHangsError
from nodeclient.keeping.disk.durable_file import Progress
from nodeclient.keeping.parts.arena_memory import NoMemoryError, Owned, size_in_words
from nodeclient.keeping.parts.arenas import Arenas, DamagedPartError, Held, read_only
from nodeclient.keeping.parts.landing import Landed, Landing
from nodeclient.keeping.parts.part_fetch import FetchError, fetch
from nodeclient.keeping.parts.part_messages import Kind, PartName, kinds_of
from nodeclient.keeping.resources import KeepResources
from workerlib.contract.arena import Commit
from workerlib.contract.channel_messages import DESCRIPTORS_MAX, NOTHING, Part, ResumeFrom

PAUSE_S = 0.2
"""The pause before a part is requested from its holder again. A host on which a round begins is busy for a moment."""


class RestoreError(OperationalError):
    """A part to resume from cannot be read or received; the text says why."""


class TransientError(RestoreError):
    """A part cannot be read now, but may be later: the file system fails, or too little memory is free."""


@dataclass(slots=True)
class ReadyParts:
    """Parts that are on this host by now, each with a descriptor by which workers can read it and not write."""

    parts: list[tuple[Part, int]] = field(default_factory=list)
    received_bytes: int = 0
    """The memory of the parts that came from other nodes, or from a disk."""
    received: int = 0
    """How many parts came from other nodes, or from a disk."""
    read: list[Owned] = field(default_factory=list)
    """The memory of the parts that came from a disk. The arenas own the memory of all other parts."""

    def add(self, commit: Commit, file: int, *, big: bool, small: bool) -> None:
        """Add the part in a file. This object closes the descriptor."""
        self.parts.append((Part(commit.rank, big=big, small=small, pending=commit.pending), file))

    def add_received(self, landed: Landed) -> None:
        """Add a part that came from elsewhere. Raises `OSError`."""
        self.received_bytes += landed.owned.size
        self.received += 1
        has_small = landed.commit.has_small or not landed.is_generation
        self.add(landed.commit, read_only(landed.owned.file), big=landed.is_generation, small=has_small)

    def close(self, arenas: Arenas) -> None:
        """Close the descriptors, and drop the received parts that are not protected."""
        for _, file in self.parts:
            os.close(file)
        arenas.memory.free(self.read)
        arenas.drop_received()
        self.parts, self.read = [], []


class Restoration:
    """Gets the parts that the workers of one round resume from."""

    def __init__(self, resources: KeepResources, run: str) -> None:
        """Begin without parts. They are requested as parts of `run`."""
        self._resources = resources
        self._run = run
        self._progress = Progress()
        self.ready = ReadyParts()
        self._problems: dict[PartName, str] = {}
        """Why each part that is still missing could not be received so far."""

    @property
    def problem(self) -> str:
        """Why a part that is missing could not be received so far; empty without a problem."""
        return next(iter(self._problems.values()), "")

    async def get(self, resume: Resume) -> None:
        """Get all parts into `ready`; release them after an error, or if this call is cancelled.

        Raises `RestoreError`, `DamagedPartError` and `OSError`.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for source in resume.sources:
                    for wanted in source.parts:
                        for rank in wanted.each_rank:
                            group.create_task(self._get_rank(resume, source, rank, wanted))
            # Received parts are reported with the digests by which the coordinator compares them.
            computing = self._resources.compute_digests(Kind.BIG)
            await asyncio.shield(asyncio.gather(*map(asyncio.wrap_future, computing)))  # others may wait for it too
        except BaseExceptionGroup as errors:
            self.cancel()
            # A damaged part comes first, so that the caller withdraws it.
            damaged = (error for error in errors.exceptions if isinstance(error, DamagedPartError))
            raise next(damaged, errors.exceptions[0]) from None
        except BaseException:
            self.cancel()
            raise

    async def _get_rank(self, resume: Resume, source: KeptSource, rank: int, wanted: WantedParts) -> None:
        if resume.disk is not None:
            await self._read(resume, rank, wanted)
        elif source.node == self._resources.node or self._is_here(resume, rank, wanted):
            await self._check(resume, rank, wanted)
        else:
            await self._receive(source, resume, rank, wanted)

    def _is_here(self, resume: Resume, rank: int, wanted: WantedParts) -> bool:
        """Whether an earlier attempt has received the parts that another node is named for.

        They are still here if their step is protected.
        """
        find = self._resources.arenas.find
        return all(find(rank, resume.round, resume.step, kind) is not None for kind in kinds_of(wanted))

    def cancel(self) -> None:
        """Stop the threads that still get parts, and release the parts that are ready."""
        self._progress.cancel()
        self.ready.close(self._resources.arenas)

    async def _check(self, resume: Resume, rank: int, wanted: WantedParts) -> None:
        """Add parts of this node, after a check of their digests."""
        by_file: dict[int, list[Held]] = {}
        for kind in kinds_of(wanted):
            held = self._resources.arenas.find(rank, resume.round, resume.step, kind)
            if held is None:
                raise RestoreError(f"this node does not keep step {resume.step} of rank {rank} any more")
            held_there = by_file.setdefault(held.file, [])
            if held in held_there:  # the generation that was just added has the small state too
                continue
            check = self._resources.digests.check(held.place, held.commit)
            if not await asyncio.shield(asyncio.wrap_future(check)):  # others may wait for it too
                raise DamagedPartError(held)
            held_there.append(held)
        for file, held_there in by_file.items():
            big, small = any(part.kind is Kind.BIG for part in held_there), any(part.small for part in held_there)
            # `kinds_of` has the small kind last, so this commit says whether the small state is pending.
            commit = held_there[-1].commit
            self.ready.add(commit, read_only(file), big=big, small=small)

    async def _read(self, resume: Resume, rank: int, wanted: WantedParts) -> None:
        disk = self._resources.disk
        if disk is None:
            raise RestoreError("this node reads nothing from a disk: it was started without --persist")
        for kind in kinds_of(wanted):  # on the disk, the small state always has a file of its own
            try:
                with closing(Landing(self._resources.arenas.memory, kind)) as landing:
                    await disk.steps.read(resume, rank, kind, landing.room, self._progress)
                    landed = landing.take()
                self.ready.read.append(landed.owned)
                self.ready.add_received(landed)
            except (OperationalError, OSError) as error:
                why = error.strerror if isinstance(error, OSError) and error.strerror else error
                failure = TransientError if _may_pass(error) else RestoreError
                raise failure(f"the state of rank {rank} at step {resume.step} cannot be read: {why}") from error

    async def _receive(self, source: KeptSource, resume: Resume, rank: int, wanted: WantedParts) -> None:
        has_small = False
        for kind in kinds_of(wanted):
            if kind is Kind.SMALL and has_small:
                return
            name = PartName(self._run, rank, resume.round, resume.step, kind)
            landed = await self._land(source, name)
            self._resources.arenas.receive(rank, landed.owned)
            self.ready.add_received(landed)
            has_small = landed.commit.has_small

    async def _land(self, source: KeptSource, name: PartName) -> Landed:
        """Receive a part from its holder. Raises `RestoreError`.

        Errors of the transfer (`FetchError`) are retried until `patience_s` after the first one: if the holder is lost
        or has withdrawn the part, the coordinator names another one meanwhile. An attempt that begins within that time
        may take longer, as a large part takes minutes. Other errors are this node's own, and are not retried.
        """
        loop = asyncio.get_running_loop()
        until: float | None = None
        while True:
            began = loop.time()
            try:
                with closing(Landing(self._resources.arenas.memory, name.kind)) as landing:
                    arguments = source, name, landing.room, self._progress.cancelled
                    await loop.run_in_executor(self._resources.threads, fetch, *arguments)
                    self._problems.pop(name, None)
                    return landing.take()
            except (FetchError, NoMemoryError, OSError) as error:
                part = f"the state of rank {name.rank} at step {name.step}"
                self._problems[name] = problem = f"{part} could not be received from node {source.node}: {error}"
                began_too_late = until is not None and began >= until
                if not isinstance(error, FetchError) or began_too_late:
                    raise RestoreError(problem) from error
                if until is None:
                    until = loop.time() + self._resources.settings.patience_s
            await asyncio.sleep(PAUSE_S)


Send = Callable[[int, ResumeFrom, Sequence[int]], None]
"""Sends an answer to the worker with this local rank, together with the descriptors of the parts."""


class ResumeAnswers:
    """Answers the workers of one round that ask where to resume."""

    def __init__(self, resources: KeepResources, send: Send, run: str = "", number: int = 0, unkept: str = "") -> None:
        """Begin before the resume point of the round is known. `unkept` names the state that was lost with old workers.

        The defaults are for the time before the first round, when no worker asks.
        """
        self._resources = resources
        self._send = send
        self._run = run
        self._number = number
        self._unkept = unkept
        self._asking: set[int] = set()
        """The local ranks of workers that wait for an answer."""
        self._resumed: set[int] = set()
        """The local ranks of workers that were answered."""
        self._answer: ResumeFrom | None = None
        """The answer to all workers, without the parts; None until these are ready."""
        self._restoration: Restoration | None = None
        """The last attempt to get the parts; None before the first one."""
        self._getting: asyncio.Task[None] | None = None
        self.restoring = Restoring.NOTHING
        """How far the node has come, for its report."""
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why parts could not be read or received, even if they are still tried; empty without a problem."""
        if self._problem or self.restoring is not Restoring.FETCHING or self._restoration is None:
            return self._problem
        return self._restoration.problem

    def pursue(self, resume: Resume | None) -> None:
        """Get the parts of a resume point if it names all holders, and then answer the workers.

        A later call may name other holders. `resume` is None if the round resumes from no step.
        """
        if resume is None:
            self._answer = NOTHING
            self._answer_all()
        elif resume.complete and self.restoring in {Restoring.NOTHING, Restoring.FETCHING}:
            self.cancel()
            self.restoring, self._problem = Restoring.FETCHING, ""
            self._restoration = Restoration(self._resources, self._run)
            self._getting = self._resources.tasks.spawn(self._get(self._restoration, resume), name="restore")

    def ask(self, local_rank: int) -> None:
        """Answer a worker's request, now or once the answer is known."""
        self._asking.add(local_rank)
        self._answer_all()

    def lose(self, local_rank: int) -> None:
        """Record that a worker is gone."""
        self._asking.discard(local_rank)

    def cancel(self) -> None:
        """Stop getting parts, and drop those that are ready."""
        if self._getting is not None:
            self._getting.cancel()
        if self._restoration is not None:
            self._restoration.cancel()

    async def _get(self, restoration: Restoration, resume: Resume) -> None:
        loop, resources = asyncio.get_running_loop(), self._resources
        began = loop.time()
        try:
            await restoration.get(resume)
        except (RestoreError, DamagedPartError, OSError) as error:
            if isinstance(error, DamagedPartError):
                resources.withdraw_damaged(error.held)
                self._problem = str(error)
                # The coordinator may name another holder meanwhile, which cancels this.
                await asyncio.sleep(resources.settings.patience_s)
            self._fail(resume, error)
            return
        self.restoring = Restoring.READY
        self._answer = ResumeFrom(resume.round, resume.step, resume.world_size, ())
        resources.notify(Level.INFO, self._resumption(resume, restoration, loop.time() - began), "state_ready")
        self._answer_all()

    def _fail(self, resume: Resume, error: Exception) -> None:
        """Report that this round cannot resume, so that the coordinator chooses another step; warn the user."""
        resources = self._resources
        self.restoring, self._problem = Restoring.FAILED, str(error)
        if resume.disk is not None and resources.disk is not None:
            may_pass = isinstance(error, TransientError)
            resources.disk.steps.withdraw(resume.disk, resume.step, str(error), may_pass=may_pass)
        text = f"round {self._number} cannot resume at step {resume.step} from {_medium(resume)}: {error}"
        resources.notify(Level.WARNING, text, "state_not_restored")
        resources.submit(KeptChanged())

    def _resumption(self, resume: Resume, restoration: Restoration, took_s: float) -> str:
        """Return the notice that the parts are ready."""
        ready = restoration.ready
        redone = ""
        if resume.round or resume.redone is not None:  # else the step is of an earlier run, and this run has done none
            redone = f", {redone_words(resume.redone, at_least=resume.redone_at_least)}"
        lacking = f", without {self._unkept}" if self._unkept else ""
        text = f"round {self._number} resumes at step {resume.step:,} from {_medium(resume)}{redone}{lacking}"
        size = size_in_words(ready.received_bytes)
        if resume.disk is not None:
            return f"{text}: {len(ready.parts)} parts, {size}, were read in {took_s:.2g} s"
        if ready.received:
            return (
                f"{text}: {ready.received} of {len(ready.parts)} parts, {size}, came from other nodes in {took_s:.2g} s"
            )
        return f"{text}: all of it is on this host"

    def _answer_all(self) -> None:
        if self._answer is None:
            return
        ready = [] if self._restoration is None else self._restoration.ready.parts
        batches = [ready[at : at + DESCRIPTORS_MAX] for at in range(0, len(ready), DESCRIPTORS_MAX)] or [[]]
        for local_rank in sorted(self._asking):  # a copy: sending to a worker that has ended calls `lose`
            for number, batch in enumerate(batches, start=1):
                parts, more = tuple(part for part, _ in batch), number < len(batches)
                self._send(local_rank, replace(self._answer, parts=parts, more=more), [file for _, file in batch])
        self._resumed |= self._asking
        self._asking.clear()
        if len(self._resumed) == self._resources.workers and self._restoration is not None:
            self._restoration.ready.close(self._resources.arenas)


def _may_pass(error: OperationalError | OSError) -> bool:
    """Whether an error of a read may pass. An `OSError` without a number says that the file is not as it should be."""
    return isinstance(error, DiskHangsError | NoMemoryError) or (isinstance(error, OSError) and bool(error.errno))


def _medium(resume: Resume) -> str:
    return "memory" if resume.disk is None else "disk"
