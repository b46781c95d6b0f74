"""The door of this room: it writes what the coordinator wants on the disk, and has the steps that are there.

A disk may be slow, full, broken or away, and a file system of the network may hang for ever. So all that touches it
runs in threads that nobody waits for at the end, and what hangs is noticed by the bytes that do not come.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.kept_parts import WantedParts
from coordinatord.protocol.persisted_state import (
    PersistOffer,
    PersistOrder,
    PersistReport,
    PersistState,
)
from coordinatord.protocol.text import clip
from coordinatord.runtime.tasks import Tasks
from nodeclient.core.effects import Level
from nodeclient.keep.arenas import Arenas, Held
from nodeclient.keep.part_messages import Kind
from nodeclient.persist import step_folder
from nodeclient.persist.durable_file import GivenUpError, Progress
from nodeclient.persist.part_writer import DamagedPartError, write_big, write_small
from nodeclient.persist.persist_settings import PersistSettings
from nodeclient.persist.step_folder import StepName, UnusableError
from nodeclient.persist.steps_on_disk import Complaints, Found, Notify, StepsOnDisk, in_thread
from workerlib.keep.manifest import ManifestError

STALL_S = 30.0
"""How long no byte may come before this node says that the disk hangs. The coordinator gives the step up later."""

LOOK_AGAIN_S = 0.5
"""The pause between two looks at how many bytes are written."""


class _HangsError(OperationalError):
    """The disk does not answer."""


class Persister:
    """Writes steps to the disk, for one node. Must be made in the running loop."""

    def __init__(
        self, settings: PersistSettings, arenas: Arenas, notify: Notify, changed: Callable[[], None], tasks: Tasks
    ) -> None:
        """Begin without a look at the disk; `changed` is called when there is something to report."""
        self._settings = settings
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
        self._complaints = Complaints(notify)
        self.steps = StepsOnDisk(settings, notify, self._complaints, changed, tasks)
        """The steps that the disk has."""
        self.report: PersistReport | None = None

    @property
    def offer(self) -> PersistOffer:
        """How the disk is to be used."""
        return self._settings.offer

    def close(self) -> None:
        """Tell the writing thread to end, without waiting for it."""
        self._progress.give_up()

    def carry_out(self, run: str, order: PersistOrder | None) -> None:
        """Write what is wanted of a step; None ends that."""
        wanted = None if order is None else (run, order)
        if wanted == self._order:
            return
        before, self._order = self._order, wanted
        if order is None:
            self._progress.give_up()
            self.report = None
            self.steps.look_now()
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
        folder = step_folder.begin(self.steps.folder, name)
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
        thread = asyncio.ensure_future(in_thread(lambda: _ending(work, ended)))
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
        folder, keep = self.steps.folder, self.offer.keep
        try:
            begun_before = await self._watched(lambda: _commit(folder, name, order.small), Progress())
        except (OperationalError, OSError) as error:
            self._fail(order, error)
            return
        self._complaints.forget()
        self._report(order, PersistState.COMMITTED)
        text = f"step {order.step} is on the disk, in {folder / name.folder}"
        self._notify(Level.INFO, text, "state_persisted")
        await self.steps.look()
        superfluous = {one.of.folder for one in self.steps.manifests[keep:] if one.serial != order.in_use}
        try:
            await in_thread(lambda: step_folder.drop(folder, superfluous | begun_before))
        except OSError as error:
            self._complaints.complain(f"older steps cannot be deleted: {error.strerror or error}")

    def _report(self, order: PersistOrder, state: PersistState, problem: str = "") -> None:
        done = 0 if self.report is None else max(self.report.bytes, self._progress.bytes)
        self.report = PersistReport(order.round, order.step, state, done, problem)
        self._changed()

    def _fail(self, order: PersistOrder, error: Exception) -> None:
        if isinstance(error, DamagedPartError):
            error.held.place.begin()
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        text = f"step {order.step} cannot be written to {self._settings.root}: {why}; training goes on"
        self._complaints.complain(text)
        self._report(order, PersistState.FAILED, clip(why, MESSAGE_MAX))


def _is_same_work(before: PersistOrder, order: PersistOrder) -> bool:
    return replace(before, commit=False, in_use=None, small=0) == replace(order, commit=False, in_use=None, small=0)


def _ranks_of(wanted: Iterable[WantedParts]) -> list[tuple[int, Kind]]:
    found = []
    for one in wanted:
        for rank in one.each_rank:
            found += [(rank, kind) for kind, is_wanted in ((Kind.BIG, one.big), (Kind.SMALL, one.small)) if is_wanted]
    return found


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
