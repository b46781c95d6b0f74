"""Writes steps to the disk as the coordinator orders. Other packages call this module.

An order names the parts that this node writes, and later perhaps asks it to *commit* the step: to make it whole, once
all nodes have written. No training waits for any of this. A disk may be slow, full, broken or missing, and a network
file system may hang for ever. So everything that touches the disk runs in daemon threads, and a thread that neither
reads nor writes bytes for a while counts as hung.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.kept_state import PersistOrder, PersistReport
from coordinatord.protocol.text import clip, sized
from coordinatord.runtime.tasks import Tasks, in_thread
from nodeclient.core.effects import Level
from nodeclient.core.persist_attempt import PersistAttempt, steps_to_delete
from nodeclient.keeping.disk import step_folder
from nodeclient.keeping.disk.complaints import Complaints, Notify, Work
from nodeclient.keeping.disk.disk_thread import THREAD, DiskThread
from nodeclient.keeping.disk.durable_file import Progress, WorkCancelledError
from nodeclient.keeping.disk.folder_claim import FolderClaim, FolderInUseError
from nodeclient.keeping.disk.part_files import write_big, write_small
from nodeclient.keeping.disk.persist_settings import PersistSettings
from nodeclient.keeping.disk.step_folder import Contents, StepName, UnusableError, file_name
from nodeclient.keeping.disk.steps_on_disk import CONTENTS, FULL, StepsOnDisk
from nodeclient.keeping.parts.arenas import Arenas, DamagedPartError, Held
from nodeclient.keeping.parts.digests import withdraw
from nodeclient.keeping.parts.part_messages import Kind, kinds_of
from workerlib.contract.manifest import ManifestError

ANSWERS_WITHIN_S = 10.0
"""How much longer than `CLAIM_WITHIN_S` a round waits for a disk that does not answer. After that the training begins
without the claim."""

CLAIM_WITHIN_S = 5.0
"""How long a claim waits for another run whose processes are just ending."""


class Persister:
    """Writes steps to the disk, for one node. Create it in the running loop."""

    def __init__(
        self, settings: PersistSettings, arenas: Arenas, notify: Notify, changed: Callable[[], None], tasks: Tasks
    ) -> None:
        """Begin without access to the disk; `changed` is called when the node's report changes."""
        self.settings = settings
        self._arenas = arenas
        self._notify = notify
        self._changed = changed
        self._tasks = tasks
        self._attempt: PersistAttempt | None = None
        """The attempt to write the step that the coordinator has ordered; None if it has ordered none."""
        self._progress = Progress()
        """The progress of that attempt. The commit has an object of its own, which counts on from the bytes written."""
        self._thread = DiskThread()
        self._complaints = Complaints(notify)
        self._claiming: asyncio.Future[None] | None = None
        """The last attempt to claim the folder. While it hangs, no other one is made, so no later round waits."""
        self._claim = FolderClaim(step_folder.job_folder(settings.root, settings.job))
        self.steps = StepsOnDisk(settings, notify, self._complaints, changed, tasks)

    @property
    def report(self) -> PersistReport | None:
        """The state of the ordered write; None if none is ordered."""
        return None if self._attempt is None else self._attempt.report(self._progress.bytes)

    def close(self) -> None:
        """Cancel the write in progress and release the claim on the folder, without waiting for a thread."""
        self._progress.cancel()
        with suppress(OSError):  # without a thread for it, the kernel releases the claim when this process ends
            in_thread(self._claim.release, THREAD)

    async def claim(self, run: str) -> str:
        """Claim the folder for a run before a round; return why the round must not begin, empty if it may.

        Only another run that uses the folder is a reason. If the folder cannot be locked, the user is warned.
        """
        if self._claim.run == run:
            return ""
        why = "it does not answer"  # unless an error is raised below
        try:
            if self._claiming is None or self._claiming.done():
                claiming = in_thread(partial(self._claim.acquire, run, CLAIM_WITHIN_S), THREAD)
                await asyncio.wait([claiming], timeout=CLAIM_WITHIN_S + ANSWERS_WITHIN_S)
                self._claiming = claiming
            if self._claiming.done():  # else the disk hangs, perhaps since an earlier round, and the user is warned
                self._claiming.result()
        except FolderInUseError as error:
            return str(error)
        except OSError as error:
            why = error.strerror or why
        if self._claim.run == run:
            self._complaints.forget(Work.LOCK)
            return ""
        text = f"{self.steps.folder} cannot be locked: {why}, so a second run that writes there is not noticed"
        self._complaints.complain(Work.LOCK, text)
        return ""

    def carry_out(self, run: str, order: PersistOrder | None) -> None:
        """Begin or go on with an ordered write; None cancels the write in progress."""
        current = self._attempt
        if order is None:
            if current is not None:
                self._attempt = None
                self._progress.cancel()
                self.steps.request_scan()  # the step may be whole by now
        elif current is not None and current.is_for(run, order):
            current.record_order(order)
            self._begin_commit(current)
        else:
            self._progress.cancel()
            self._attempt, self._progress = PersistAttempt(run, order), Progress()
            self._tasks.spawn(self._write(self._attempt, self._progress), name="persist")

    async def _write(self, attempt: PersistAttempt, progress: Progress) -> None:
        """Write the parts of an attempt, and then make the step whole if this node is the committer."""
        order, name = attempt.order, _name_of(attempt)
        parts: list[tuple[Kind, Held]] = []
        try:
            names = ((rank, kind) for some in order.parts for rank in some.each_rank for kind in kinds_of(some))
            parts = [(kind, self._find(order, rank, kind)) for rank, kind in names]
            work = partial(self._write_all, name, parts, progress, order.aborted)
            await self._thread.run(work, progress)
        except WorkCancelledError:
            return
        except (OperationalError, ManifestError, OSError) as error:
            self._fail(attempt, Work.WRITE, error, _size_of(parts))
            return
        attempt.record_written()
        self._complaints.forget(Work.WRITE)
        self._changed()
        if attempt is self._attempt:
            self._begin_commit(attempt)

    def _begin_commit(self, attempt: PersistAttempt) -> None:
        """Begin to make the step whole, if all files of this node are written and it is the committer."""
        if attempt.begin_commit():
            self._progress = Progress(self._progress.bytes)
            self._tasks.spawn(self._commit(attempt, self._progress), name="persist")

    def _find(self, order: PersistOrder, rank: int, kind: Kind) -> Held:
        held = self._arenas.find(rank, order.round, order.step, kind)
        if held is None:
            raise UnusableError(f"this node does not keep step {order.step} of rank {rank} any more")
        return held

    def _write_all(
        self, name: StepName, parts: list[tuple[Kind, Held]], progress: Progress, aborted: tuple[int, ...]
    ) -> None:
        """Write this node's parts, in a thread; delete them again if that fails or is cancelled."""
        # The round may have begun without the claim, as the disk did not answer then.
        with suppress(OSError):  # if it cannot be locked, the user was warned when the round began
            self._claim.acquire(name.run, CLAIM_WITHIN_S)
        step_folder.delete_attempts(self.steps.folder, name.run, aborted, progress)
        folder = step_folder.begin(self.steps.folder, name)
        # A step has one file of buffers, that of the rank that writes the first shard.
        with_buffers = {held.commit.rank for kind, held in parts if kind is Kind.BIG and held.commit.shard == 0}
        try:
            for kind, held in parts:
                if kind is Kind.BIG:
                    write_big(folder, name, held, progress)
                elif not held.commit.pending:  # else its rank has not done the step: it will use another's
                    write_small(folder, name, held, progress, buffers=held.commit.rank in with_buffers)
        except BaseException:
            files = [(CONTENTS[kind], held.commit.rank, held.commit.shard) for kind, held in parts]
            files += [(Contents.BUFFERS, rank, 0) for rank in with_buffers]
            with suppress(OSError):
                step_folder.remove_files(folder, [file_name(*file) for file in files])
            raise

    async def _commit(self, attempt: PersistAttempt, progress: Progress) -> None:
        """Make the step of an attempt whole, and delete older ones, unless `progress` is cancelled meanwhile."""
        folder, name, smalls = self.steps.folder, _name_of(attempt), attempt.order.small
        try:
            work = partial(_commit_and_list, folder, name, smalls, progress, self.settings.command)
            unfinished = await self._thread.run(work, progress)
        except WorkCancelledError:
            return
        except (OperationalError, OSError) as error:
            self._fail(attempt, Work.COMMIT, error)
            return
        self.steps.known.stays = attempt.order.stays
        await self.steps.scan()  # before the report: only a node that has found the step notices when it is gone
        attempt.record_committed()
        self._complaints.forget(Work.COMMIT)
        self._changed()
        text = f"step {name.step} is on the disk, in {folder / name.folder}"
        self._notify(Level.INFO, text, "state_persisted")
        dropped = steps_to_delete(self.steps.known.whole, self.settings.offer.keep, attempt.order.stays) | unfinished
        try:
            await in_thread(lambda: step_folder.delete_steps(folder, dropped), THREAD)
        except OSError as error:
            self._complaints.complain(Work.DELETE, f"older steps cannot be deleted: {error.strerror or error}")
        else:
            self._complaints.forget(Work.DELETE)

    def _fail(self, attempt: PersistAttempt, work: Work, error: Exception, size: int = 0) -> None:
        if isinstance(error, DamagedPartError):
            withdraw(error.held.place, error.held.commit)
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        if size and isinstance(error, OSError) and error.errno in FULL:
            why = f"{why} for the {sized(size)} of this node"
        attempt.fail(clip(why, SENTENCE_MAX))
        if attempt is self._attempt:
            text = f"step {attempt.order.step} cannot be written to {self.settings.root}: {why}; it is tried again"
            self._complaints.complain(work, text)
            self._changed()


def _size_of(parts: list[tuple[Kind, Held]]) -> int:
    """Return how many bytes parts have in memory. A place that a big and a small state share counts once."""
    return sum({(held.commit.rank, held.kind): held.commit.length for _, held in parts}.values())


def _name_of(attempt: PersistAttempt) -> StepName:
    order = attempt.order
    return StepName(attempt.run, order.round, order.step, order.world_size, order.shards, str(order.attempt))


def _commit_and_list(job: Path, name: StepName, smalls: int, progress: Progress, command: str) -> set[str]:
    """Make a step with `smalls` small states whole; return the folders of unfinished steps.

    They are listed before the coordinator learns that the step is whole: after that, another run may begin.
    """
    step_folder.commit(job, name, smalls, progress, command)
    return step_folder.unfinished(job, name, progress)
