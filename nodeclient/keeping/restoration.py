"""Gets the parts that the workers of a round resume from: those of this node, of other nodes, or of the disk.

It gets all of them or fails: what a round resumes from was chosen for all of its nodes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.kept_state import KeptSource, Resume, WantedParts
from nodeclient.keeping.disk.disk_thread import DiskHangsError
from nodeclient.keeping.disk.durable_file import Progress
from nodeclient.keeping.parts.arenas import Arenas, Held, NoMemoryError, read_only
from nodeclient.keeping.parts.landing import Landed, Landing
from nodeclient.keeping.parts.part_fetch import FetchError, fetch
from nodeclient.keeping.parts.part_messages import Kind, PartName
from nodeclient.keeping.resources import KeepResources
from workerlib.contract.arena import Commit
from workerlib.contract.channel_messages import Part

PAUSE_S = 0.2
"""The pause before a holder is asked again: a host on which a round begins is busy for a moment."""


class RestoreError(OperationalError):
    """The workers cannot have what they are to resume from; the text says why."""


class FileSystemError(RestoreError):
    """The file system has failed or does not answer; it may soon work again."""


class DamagedError(RestoreError):
    """A part of this node is not what was saved."""

    def __init__(self, held: Held) -> None:
        commit = held.commit
        super().__init__(f"what this node kept of rank {commit.rank} at step {commit.step} is not what was saved")
        self.held = held


@dataclass(slots=True)
class ReadyParts:
    """Parts that are on this host by now, each with a read-only descriptor."""

    parts: list[tuple[Part, int]] = field(default_factory=list)
    received_bytes: int = 0
    """The memory of the parts that came from other nodes, or from a disk."""
    received: int = 0
    """How many parts came from other nodes, or from a disk."""

    def add(self, commit: Commit, file: int, *, big: bool, small: bool) -> None:
        """Add the part in a file. This object closes the descriptor."""
        self.parts.append((Part(commit.rank, big, small, commit.pending), file))

    def add_received(self, landed: Landed) -> None:
        """Add a part that came from elsewhere, whose memory is this object's from now on."""
        self.received_bytes += landed.size
        self.received += 1
        has_small = landed.commit.has_small or not landed.is_generation
        self.add(landed.commit, landed.file, big=landed.is_generation, small=has_small)

    def close(self, arenas: Arenas) -> None:
        """Close the descriptors. Workers keep the memory that they have mapped."""
        for _, file in self.parts:
            os.close(file)
        arenas.give_back(self.received_bytes)
        self.parts, self.received_bytes = [], 0


class Restoration:
    """Gets the parts that the workers of one round resume from."""

    def __init__(self, resources: KeepResources, run: str) -> None:
        """Prepare to get parts of a run.

        A holder that does not send a part is asked again for a while: the coordinator names another one if the holder
        is lost, or has withdrawn the part.
        """
        self._resources = resources
        self._run = run
        self._progress = Progress()
        self._given_up = Event()
        self.ready = ReadyParts()
        self.problem = ""
        """Why a part could not be had so far, if one could not."""

    async def get(self, resume: Resume) -> None:
        """Get all parts, so that `ready` has them. Raises `RestoreError`. May be cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for source in resume.sources:
                    for wanted in source.parts:
                        for rank in wanted.each_rank:
                            group.create_task(self._get_rank(resume, source, rank, wanted))
        except BaseExceptionGroup as errors:
            self.give_up()
            raise _to_report(errors) from None
        except BaseException:
            self.give_up()
            raise

    async def _get_rank(self, resume: Resume, source: KeptSource, rank: int, wanted: WantedParts) -> None:
        """Get what is wanted of one rank: from the disk, from this node or from another one."""
        if resume.disk is not None:
            await self._read(resume, rank, wanted)
        elif source.node == self._resources.node:
            await self._check(resume, rank, wanted)
        else:
            await self._receive(source, resume, rank, wanted)

    def give_up(self) -> None:
        """Stop the threads that still get parts, and give up the parts that are ready."""
        self._given_up.set()
        self._progress.give_up()
        self.ready.close(self._resources.arenas)

    async def _check(self, resume: Resume, rank: int, wanted: WantedParts) -> None:
        """Add parts of this node, once their digests proved right."""
        by_file: dict[int, list[Held]] = {}
        for kind in _kinds(wanted):
            held = self._resources.arenas.find(rank, resume.round, resume.step, kind)
            if held is None:
                raise RestoreError(f"this node does not keep step {resume.step} of rank {rank} any more")
            held_there = by_file.setdefault(held.file, [])
            if held in held_there:  # a generation has the small state too
                continue
            check = self._resources.digests.check(held.place, held.commit)
            if not await asyncio.shield(asyncio.wrap_future(check)):  # others may wait for it too
                raise DamagedError(held)
            held_there.append(held)
        for file, held_there in by_file.items():
            big, small = any(part.kind is Kind.BIG for part in held_there), any(part.small for part in held_there)
            self.ready.add(held_there[-1].commit, read_only(file), big=big, small=small)

    async def _read(self, resume: Resume, rank: int, wanted: WantedParts) -> None:
        """Add parts that are on the disk."""
        disk = self._resources.disk
        if disk is None:
            raise RestoreError("this node reads nothing from a disk: it was started without --persist")
        for kind in _kinds(wanted):
            landing = Landing(self._resources.arenas, kind)
            try:
                await disk.steps.read(resume, rank, kind, landing.room, self._progress)
                self.ready.add_received(landing.take())
            except (OperationalError, OSError) as error:
                landing.close()
                why = error.strerror if isinstance(error, OSError) and error.strerror else error
                may_pass = isinstance(error, DiskHangsError) or (isinstance(error, OSError) and error.errno)
                failure = FileSystemError if may_pass else RestoreError
                raise failure(f"the state of rank {rank} at step {resume.step} cannot be read: {why}") from error
            except BaseException:
                landing.close()
                raise

    async def _receive(self, source: KeptSource, resume: Resume, rank: int, wanted: WantedParts) -> None:
        """Add parts that another node holds."""
        has_small = False
        for kind in _kinds(wanted):
            if kind is Kind.SMALL and has_small:
                return
            name = PartName(self._run, rank, resume.round, resume.step, kind)
            landed = await self._land(source, name)
            self.ready.add_received(landed)
            has_small = landed.commit.has_small

    async def _land(self, source: KeptSource, name: PartName) -> Landed:
        """Receive one part."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._resources.settings.patience_s
        while True:
            landing = Landing(self._resources.arenas, name.kind)
            try:
                await loop.run_in_executor(self._resources.threads, fetch, source, name, landing.room, self._given_up)
                return landing.take()
            except (FetchError, NoMemoryError, OSError) as error:
                landing.close()
                part = f"the state of rank {name.rank} at step {name.step}"
                self.problem = f"{part} could not be had from node {source.node}: {error}"
                if not isinstance(error, FetchError) or loop.time() >= until:
                    raise RestoreError(self.problem) from error
            except BaseException:
                landing.close()
                raise
            await asyncio.sleep(PAUSE_S)


def _to_report(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to report of several: that of a damaged part of this node, or else the first."""
    leaves = list(_leaves(errors))
    return next((leaf for leaf in leaves if isinstance(leaf, DamagedError)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for leaf in error.exceptions:
            yield from _leaves(leaf)
    else:
        yield error


def _kinds(wanted: WantedParts) -> Iterator[Kind]:
    if wanted.big:
        yield Kind.BIG
    if wanted.small:
        yield Kind.SMALL
