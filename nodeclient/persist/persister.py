"""The door of this room: it writes what the coordinator wants on the disk, and reports what the disk has.

A disk may be slow, full, broken or away, and a file system of the network may hang for ever. So all that touches it
runs in threads that nobody waits for at the end, and what hangs is noticed by the bytes that do not come.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.kept_parts import KeptStep, WantedParts
from coordinatord.protocol.kept_state import Resume
from coordinatord.protocol.persisted_state import (
    PERSISTED_MAX,
    PERSISTED_PARTS_MAX,
    DiskStep,
    PersistedStep,
    PersistOffer,
    PersistOrder,
    PersistReport,
    PersistState,
)
from coordinatord.protocol.text import clip
from coordinatord.runtime.tasks import Tasks
from nodeclient.core import kept_groups
from nodeclient.core.effects import Level
from nodeclient.keep.arenas import Arenas, Held
from nodeclient.keep.part_messages import Kind
from nodeclient.persist import step_folder
from nodeclient.persist.durable_file import GivenUpError, Progress
from nodeclient.persist.part_reader import Room, read_part
from nodeclient.persist.part_writer import DamagedPartError, write_big, write_small
from nodeclient.persist.persist_settings import PersistSettings
from nodeclient.persist.step_folder import Contents, Manifest, StepName, UnusableError
from nodeclient.persist.unusable_steps import UnusableSteps
from workerlib.keep.arena import Commit
from workerlib.keep.manifest import ManifestError

LOOK_WITHIN_S = 10.0
"""How long a first look at the disk may take before the user is told of it. The node does not join before."""

LOOK_EVERY_S = 10.0
"""The pause between two looks at which steps the disk has: other nodes write some and drop others. A round that would
begin anew waits until all of its nodes find the same."""

STALL_S = 30.0
"""How long no byte may come before this node says that the disk hangs. The coordinator gives the step up later."""

LOOK_AGAIN_S = 0.5
"""The pause between two looks at how many bytes are written."""

Found = TypeVar("Found")
Notify = Callable[[Level, str, str], None]


class _HangsError(OperationalError):
    """The disk does not answer."""


class Persister:
    """Writes steps to the disk and reads them back, for one node. Must be made in the running loop."""

    def __init__(
        self, settings: PersistSettings, arenas: Arenas, notify: Notify, changed: Callable[[], None], tasks: Tasks
    ) -> None:
        """Begin without a look at the disk; `changed` is called when there is something to report."""
        self._settings = settings
        self._folder = step_folder.job_folder(settings.root, settings.job)
        self._arenas = arenas
        self._notify = notify
        self._changed = changed
        self._tasks = tasks
        self._order: tuple[str, PersistOrder] | None = None
        self._work: asyncio.Task[None] | None = None
        self._is_committing = False
        """Whether the step is being made whole, or that has failed: the order may change meanwhile."""
        self._progress = Progress()
        self._hanging: threading.Event | None = None
        """Set when the writing thread has ended, also one that was given up."""
        self._manifests: dict[tuple[str, KeptStep], Manifest] = {}
        self._unusable = UnusableSteps()
        self._looking = asyncio.Lock()
        self._look_now = asyncio.Event()
        self._problems: set[str] = set()
        """What was wrong with steps at the last look."""
        self._said = ""
        """The last problem that the user was told of."""
        self.found: tuple[PersistedStep, ...] = ()
        """The newest whole steps on the disk, without those that could not be read."""
        self.unusable = ""
        """Why something on the disk is of no use to this node."""
        self.report: PersistReport | None = None

    @property
    def offer(self) -> PersistOffer:
        """How the disk is to be used."""
        return self._settings.offer

    async def look(self) -> None:
        """Look at the disk, until that succeeds; then go on to look at it from time to time.

        A node that joined without it could have a round begin from nothing although there is something.
        """
        first = self._tasks.spawn(self._look_until_seen(), name="look")
        done, _ = await asyncio.wait([first], timeout=LOOK_WITHIN_S)
        if not done:
            text = f"{self._settings.root} does not answer within {LOOK_WITHIN_S:g} s: this node joins when it does"
            self._notify(Level.WARNING, text, "disk_hangs")
            await first
        self._tasks.spawn(self._keep_looking(), name="look")

    async def _look_until_seen(self) -> None:
        while True:
            if await self._look():
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _keep_looking(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):  # wait_for may take the end of this task for an answer
                    await self._look_now.wait()
            self._look_now.clear()
            await self._look()

    async def _look(self) -> bool:
        """Look which steps are whole; return whether that could be seen. One look is made at a time."""
        async with self._looking:
            known = {one.of.folder: one for one in self._manifests.values()}
            try:
                whole, problems = await _in_thread(lambda: step_folder.find_whole(self._folder, known))
            except OSError as error:
                why = error.strerror or error
                self._complain(f"{self._folder} cannot be read: {why}; this is tried again every {LOOK_EVERY_S:g} s")
                return False
        for problem in problems:
            if problem not in self._problems:
                self._notify(Level.WARNING, problem, "state_not_persisted")
        self._problems = {*problems}
        now = asyncio.get_running_loop().time()
        found = {(one.of.run, one.of.at): one for one in whole}
        self._unusable.forget_gone(found.keys())
        self._manifests = {key: one for key, one in found.items() if not self._unusable.is_barred(key, now)}
        before = self.found, self.unusable
        self.found = tuple(map(_summary, [*self._manifests.values()][:PERSISTED_MAX]))
        self.unusable = clip(self._unusable.why(found, now) or next(iter(problems), ""), MESSAGE_MAX)
        if (self.found, self.unusable) != before:
            self._changed()
        return True

    def close(self) -> None:
        """Tell the writing thread to end, without waiting for it."""
        self._progress.give_up()

    # What the coordinator wants

    def carry_out(self, run: str, order: PersistOrder | None) -> None:
        """Write what is wanted of a step; None ends that."""
        wanted = None if order is None else (run, order)
        if wanted == self._order:
            return
        before, self._order = self._order, wanted
        if order is None:
            self._progress.give_up()
            self.report = None
            self._look_now.set()
        elif before is not None and before[0] == run and _is_same_work(before[1], order):
            self._commit_if_wanted()
        else:
            self._begin(run, order)

    def _begin(self, run: str, order: PersistOrder) -> None:
        self._progress.give_up()
        self.report = PersistReport(order.round, order.step, PersistState.WRITING, 0)
        if self._work is not None and not self._work.done():
            self._work.cancel()
        self._progress = Progress()
        self._is_committing = False
        self._work = self._tasks.spawn(self._write(run, order, self._progress), name="persist")

    async def _write(self, run: str, order: PersistOrder, progress: Progress) -> None:
        name = StepName(run, order.round, order.step, order.world_size, order.shards)
        try:
            parts = [(kind, self._find(order, rank, kind)) for rank, kind in _ranks_of(order.parts)]
            await self._watched(lambda: self._write_all(name, parts, progress), progress)
        except GivenUpError:
            return
        except (OperationalError, ManifestError, OSError) as error:
            self._fail(order, error)
            return
        self._report(order, PersistState.WRITTEN)
        self._commit_if_wanted()

    def _find(self, order: PersistOrder, rank: int, kind: Kind) -> Held:
        held = self._arenas.find(rank, order.round, order.step, kind)
        if held is None:
            raise UnusableError(f"this node does not keep step {order.step} of rank {rank} any more")
        return held

    def _write_all(self, name: StepName, parts: list[tuple[Kind, Held]], progress: Progress) -> None:
        folder = step_folder.begin(self._folder, name)
        first = {held.commit.rank for kind, held in parts if kind is Kind.BIG and held.commit.shard == 0}
        for kind, held in parts:
            if kind is Kind.BIG:
                write_big(folder, name, held, progress)
            elif not held.commit.pending:
                write_small(folder, name, held, progress, buffers=held.commit.rank in first)

    async def _watched(self, work: Callable[[], Found], progress: Progress) -> Found:
        """Do work in a thread, and look how far it comes. Raises `_HangsError`, and what the work raises."""
        if self._hanging is not None and not self._hanging.is_set():
            raise _HangsError("the disk hangs: a write that was begun before has not ended")
        self._hanging = ended = threading.Event()
        loop = asyncio.get_running_loop()
        thread = asyncio.ensure_future(_in_thread(lambda: _ending(work, ended)))
        seen, seen_at = progress.bytes, loop.time()
        try:
            while True:
                done, _ = await asyncio.wait([thread], timeout=LOOK_AGAIN_S)
                if done:
                    self._hanging = None
                    return thread.result()
                if progress.bytes != seen:
                    seen, seen_at = progress.bytes, loop.time()
                    if self.report is not None:
                        self.report = replace(self.report, bytes=seen)
                elif loop.time() >= seen_at + STALL_S:
                    raise _HangsError(f"the disk hangs: nothing was written for {STALL_S:g} s")
        finally:
            progress.give_up()
            thread.cancel()  # nobody waits for it any more; it ends at its next chunk

    def _commit_if_wanted(self) -> None:
        if self._order is None or self.report is None or self.report.state is not PersistState.WRITTEN:
            return
        run, order = self._order
        if order.commit and not self._is_committing:
            self._is_committing = True
            self._work = self._tasks.spawn(self._commit(run, order), name="persist")

    async def _commit(self, run: str, order: PersistOrder) -> None:
        name = StepName(run, order.round, order.step, order.world_size, order.shards)
        folder, keep = self._folder, self.offer.keep
        try:
            begun_before = await self._watched(lambda: _commit(folder, name, order.small), Progress())
        except (OperationalError, OSError) as error:
            self._fail(order, error)
            return
        self._said = ""
        self._report(order, PersistState.COMMITTED)
        text = f"step {order.step} is on the disk, in {folder / name.folder}"
        self._notify(Level.INFO, text, "state_persisted")
        await self._look()
        superfluous = {one.of.folder for one in [*self._manifests.values()][keep:] if one.serial != order.in_use}
        try:
            await _in_thread(lambda: step_folder.drop(folder, superfluous | begun_before))
        except OSError as error:
            self._complain(f"older steps cannot be deleted: {error.strerror or error}")

    def _report(self, order: PersistOrder, state: PersistState, problem: str = "") -> None:
        done = 0 if self.report is None else max(self.report.bytes, self._progress.bytes)
        self.report = PersistReport(order.round, order.step, state, done, problem)
        self._changed()

    def _fail(self, order: PersistOrder, error: Exception) -> None:
        if isinstance(error, DamagedPartError):
            error.held.place.begin()
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        self._complain(f"step {order.step} cannot be written to {self._settings.root}: {why}; training goes on")
        self._report(order, PersistState.FAILED, clip(why, MESSAGE_MAX))

    def _complain(self, text: str) -> None:
        """Tell the user what is wrong, unless the user was told that last."""
        if text.partition(": ")[2] != self._said.partition(": ")[2] or not self._said:
            self._notify(Level.WARNING, text, "state_not_persisted")
        self._said = text

    # What a round resumes from

    async def read(self, resume: Resume, rank: int, kind: Kind, room: Room, progress: Progress) -> Commit:
        """Read a part into memory, as of the step that the round resumes from.

        Raises `OSError` and `UnusableError`, and what `room` raises.
        """
        disk = resume.disk
        manifest = None if disk is None else self._manifests.get((disk.run, KeptStep(disk.round, resume.step)))
        if manifest is None:
            raise UnusableError(f"step {resume.step} is not on the disk any more")
        contents = Contents.SHARD if kind is Kind.BIG else Contents.SMALL
        folder = self._folder
        return await _in_thread(lambda: read_part(folder, manifest, (rank, contents), resume.round, room, progress))

    def withdraw(self, disk: DiskStep, step: int, why: str, *, passes: bool) -> None:
        """Stop reporting a step that cannot be read; `passes` says that this may be over in a moment."""
        key = disk.run, KeptStep(disk.round, step)
        self._unusable.note(key, why, asyncio.get_running_loop().time(), passes=passes)
        self._manifests.pop(key, None)  # so that the next look reads anew what there is
        self.found = tuple(one for one in self.found if (one.run, one.at) != key)
        self.unusable = clip(why, MESSAGE_MAX)

    @property
    def words(self) -> str:
        """Describe where steps are written and how often."""
        offer = self.offer
        return f"every {offer.every_s:g} s to {self._settings.root}, the last {offer.keep}"


def _is_same_work(before: PersistOrder, order: PersistOrder) -> bool:
    return replace(before, commit=False, in_use=None, small=0) == replace(order, commit=False, in_use=None, small=0)


def _ranks_of(wanted: Iterable[WantedParts]) -> list[tuple[int, Kind]]:
    found = []
    for one in wanted:
        for rank in one.each_rank:
            found += [(rank, kind) for kind, is_wanted in ((Kind.BIG, one.big), (Kind.SMALL, one.small)) if is_wanted]
    return found


def _summary(manifest: Manifest) -> PersistedStep:
    parts = kept_groups.grouped(kept_groups.merged(manifest.parts()))[:PERSISTED_PARTS_MAX]
    return PersistedStep(manifest.serial, manifest.of.run, parts)


def _commit(job: Path, of: StepName, small: int) -> set[str]:
    """Make a step whole; return the folders of those that were begun before it and never became whole.

    Once the coordinator knows of this step, the next one is begun at any moment, so they are listed here.
    """
    step_folder.commit(job, of, small)
    return step_folder.unfinished(job)


def _ending(work: Callable[[], Found], ended: threading.Event) -> Found:
    try:
        return work()
    finally:
        ended.set()


async def _in_thread(work: Callable[[], Found]) -> Found:
    """Do work in a thread of its own, for which the end of the program does not wait."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Found] = loop.create_future()

    def finish(result: Found | None, error: Exception | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]  # it is the result where there is no error
            else:
                done.set_exception(error)

    def run() -> None:
        result, problem = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it is raised in the task that waits
            problem = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, problem)

    threading.Thread(target=run, name="persist", daemon=True).start()
    return await done
