"""Writes steps to the disk as the coordinator orders, and has the steps that are there. Other rooms call this module.

A disk may be slow, full, broken or away, and a network file system may hang for ever. So all that touches the disk runs
in daemon threads, and a hang is noticed because no bytes are written or read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.kept_state import PersistOrder, PersistReport
from coordinatord.protocol.text import clip
from coordinatord.runtime.tasks import Tasks, in_thread
from nodeclient.core.effects import Level
from nodeclient.core.persist_attempt import PersistAttempt, steps_to_delete
from nodeclient.keeping.disk import step_folder
from nodeclient.keeping.disk.complaints import Complaints, Notify
from nodeclient.keeping.disk.disk_thread import THREAD, DiskThread, retrieve
from nodeclient.keeping.disk.durable_file import GivenUpError, Progress
from nodeclient.keeping.disk.folder_claim import FolderClaim, FolderInUseError
from nodeclient.keeping.disk.part_writer import DamagedPartError, file_name, write_big, write_small
from nodeclient.keeping.disk.persist_settings import PersistSettings
from nodeclient.keeping.disk.step_folder import BUFFERS_FILE, StepName, UnusableError
from nodeclient.keeping.disk.steps_on_disk import StepsOnDisk
from nodeclient.keeping.parts.arenas import Arenas, Held
from nodeclient.keeping.parts.digests import withdraw
from nodeclient.keeping.parts.part_messages import Kind, kinds_of
from workerlib.contract.manifest import ManifestError

ANSWERS_WITHIN_S = 10.0
"""How long a round waits for a disk that does not answer: one that hangs stops no training."""

CLAIM_WITHIN_S = 5.0
"""How long another run gets to end: a process that is ending, and nodes of which some have begun with the next run."""


class Persister:
    """Writes steps to the disk, for one node. Must be made in the running loop."""

    def __init__(
        self, settings: PersistSettings, arenas: Arenas, notify: Notify, changed: Callable[[], None], tasks: Tasks
    ) -> None:
        """Begin without a look at the disk; `changed` is called when there is something to report."""
        self.settings = settings
        self._arenas = arenas
        self._notify = notify
        self._changed = changed
        self._tasks = tasks
        self._attempt: PersistAttempt | None = None
        """The attempt to write the step that the coordinator wants now; None if it wants none."""
        self._progress = Progress()
        """How far the files of that attempt are written."""
        self._thread = DiskThread()
        self._complaints = Complaints(notify)
        self._hanging: asyncio.Future[None] | None = None
        """The last claim on the folder that was awaited: if the disk still hangs, it holds up no other round."""
        self._claim = FolderClaim(step_folder.job_folder(settings.root, settings.job))
        self.steps = StepsOnDisk(settings, notify, self._complaints, changed, tasks)
        """The steps that the disk has."""

    @property
    def report(self) -> PersistReport | None:
        """How far this node is with the step that the coordinator wants; None if it wants none."""
        return None if self._attempt is None else self._attempt.report

    def close(self) -> None:
        """Give up the write in progress, without waiting for the end of its thread, and the claim on the folder."""
        self._progress.give_up()
        in_thread(self._claim.release, THREAD)

    async def claim(self, run: str) -> str:
        """Claim the folder for a run that begins a round; return why the run must not use it, empty if it may."""
        if self._claim.run == run:
            return ""
        why = "it does not answer"
        try:
            if self._hanging is None or self._hanging.done():
                claiming = in_thread(partial(self._claim.take, run, CLAIM_WITHIN_S), THREAD)
                claiming.add_done_callback(retrieve)
                await asyncio.wait([claiming], timeout=CLAIM_WITHIN_S + ANSWERS_WITHIN_S)
                self._hanging = claiming
            if self._hanging.done():
                self._hanging.result()
        except FolderInUseError as error:
            return str(error)
        except OSError as error:
            why = error.strerror or why
        if self._claim.run == run:
            return ""
        text = f"{self.steps.folder} cannot be locked: {why}, so a second run that writes there is not noticed"
        self._complaints.complain(text)
        return ""

    def carry_out(self, run: str, order: PersistOrder | None) -> None:
        """Write this node's parts of a step; None ends the write in progress."""
        current = self._attempt
        if order is None:
            if current is not None:
                self._attempt = None
                self._progress.give_up()
                self.steps.look_now()
        elif current is not None and current.is_for(run, order):
            current.record_order(order)
            if current.begin_commit():
                self._tasks.spawn(self._commit(current), name="persist")
        else:
            self._progress.give_up()
            self._attempt, self._progress = PersistAttempt(run, order), Progress()
            self._tasks.spawn(self._write(self._attempt, self._progress), name="persist")

    async def _write(self, attempt: PersistAttempt, progress: Progress) -> None:
        """Write the parts of an attempt, and make the step whole if this node is the committer."""
        order, name = attempt.order, _name_of(attempt)
        try:
            names = ((rank, kind) for each in order.parts for rank in each.each_rank for kind in kinds_of(each))
            parts = [(kind, self._find(order, rank, kind)) for rank, kind in names]
            work = partial(self._write_all, name, parts, progress, order.aborted)
            await self._thread.do(work, progress, attempt.record_bytes)
        except GivenUpError:
            return
        except (OperationalError, ManifestError, OSError) as error:
            self._fail(attempt, error)
            return
        attempt.record_written()
        self._changed()
        if attempt is self._attempt and attempt.begin_commit():
            await self._commit(attempt)

    def _find(self, order: PersistOrder, rank: int, kind: Kind) -> Held:
        held = self._arenas.find(rank, order.round, order.step, kind)
        if held is None:
            raise UnusableError(f"this node does not keep step {order.step} of rank {rank} any more")
        return held

    def _write_all(
        self, name: StepName, parts: list[tuple[Kind, Held]], progress: Progress, aborted: tuple[int, ...]
    ) -> None:
        """Write the parts of this node. If that fails or is given up, delete them: the step does not become whole."""
        with suppress(OSError):  # without locks, the user was warned when the round began
            self._claim.take(name.run, CLAIM_WITHIN_S)
        step_folder.drop_attempts(self.steps.folder, name.run, aborted, progress)
        folder = step_folder.begin(self.steps.folder, name)
        # A step has one file of buffers: those of the rank that writes the first shard.
        with_buffers = {held.commit.rank for kind, held in parts if kind is Kind.BIG and held.commit.shard == 0}
        try:
            for kind, held in parts:
                if kind is Kind.BIG:
                    write_big(folder, name, held, progress)
                elif not held.commit.pending:
                    write_small(folder, name, held, progress, buffers=held.commit.rank in with_buffers)
        except BaseException:
            with suppress(OSError):
                names = [file_name(kind, held) for kind, held in parts]
                step_folder.remove_files(folder, [*names, *([BUFFERS_FILE] if with_buffers else [])])
            raise

    async def _commit(self, attempt: PersistAttempt) -> None:
        folder, name, small, progress = self.steps.folder, _name_of(attempt), attempt.order.small, Progress()
        try:
            work = partial(_commit_and_list, folder, name, small, progress, self.settings.command)
            whole, unfinished = await self._thread.do(work, progress, attempt.record_bytes)
        except (OperationalError, OSError) as error:
            self._fail(attempt, error)
            return
        attempt.record_committed()
        self._complaints.forget()
        self._changed()
        text = f"step {whole.step} is on the disk, in {folder / whole.folder}"
        self._notify(Level.INFO, text, "state_persisted")
        await self.steps.look()
        dropped = steps_to_delete(self.steps.known.whole, self.settings.offer.keep, attempt.order.in_use) | unfinished
        try:
            await in_thread(lambda: step_folder.drop(folder, dropped), THREAD)
        except OSError as error:
            self._complaints.complain(f"older steps cannot be deleted: {error.strerror or error}")

    def _fail(self, attempt: PersistAttempt, error: Exception) -> None:
        if isinstance(error, DamagedPartError):
            withdraw(error.held.place, error.held.commit)
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        attempt.fail(clip(why, MESSAGE_MAX))
        if attempt is self._attempt:
            text = f"step {attempt.order.step} cannot be written to {self.settings.root}: {why}"
            self._complaints.complain(text)
            self._changed()


def _name_of(attempt: PersistAttempt) -> StepName:
    order = attempt.order
    return StepName(attempt.run, order.round, order.step, order.world_size, order.shards, attempt.name)


def _commit_and_list(
    job: Path, name: StepName, small: int, progress: Progress, command: str
) -> tuple[StepName, set[str]]:
    """Make a step whole; return the step that is whole, and the folders of those that were begun and are not.

    They are listed here, before the coordinator knows of this step: then another step may be begun at any moment.
    """
    whole = step_folder.commit(job, name, small, progress, command).of
    return whole, step_folder.unfinished(job, progress)
