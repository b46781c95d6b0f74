"""Scans the disk for whole steps at intervals, and reads the step that a round resumes from.

A step is whole once its manifest, the list of its files, is there. Everything that touches the disk runs in daemon
threads, since a network file system may hang for ever.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.kept_state import DiskStep, Resume
from coordinatord.runtime.tasks import Tasks, in_thread
from nodeclient.core.effects import Level
from nodeclient.host.host_facts import mount_of
from nodeclient.keeping.disk import disk_thread, step_folder
from nodeclient.keeping.disk.complaints import Complaints, Notify, Work
from nodeclient.keeping.disk.disk_thread import THREAD, Result, read_in_thread
from nodeclient.keeping.disk.durable_file import Progress, check_writable
from nodeclient.keeping.disk.known_steps import KnownSteps
from nodeclient.keeping.disk.part_files import Room, read_part
from nodeclient.keeping.disk.persist_settings import PersistSettings
from nodeclient.keeping.disk.step_folder import Contents, Manifest, UnusableError
from nodeclient.keeping.parts.part_messages import Kind
from workerlib.contract.arena import Commit

SCAN_WITHIN_S = 10.0
"""How long the first scan may take before the user is warned. The node joins only after that scan."""

SCAN_EVERY_S = 10.0
"""The pause between two scans, since other nodes write and delete steps. A round that would begin from nothing waits
until all of its nodes find the same steps."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors of a full disk. The node joins nonetheless, since somebody may make room while it trains."""

MISTAKEN = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP}
)
"""The errors of a wrong directory, or of one that must not be written. A retry would not help."""

CONTENTS = {Kind.BIG: Contents.SHARD, Kind.SMALL: Contents.SMALL}
"""The content of the file of each kind of part."""

RETRIED = f"this is tried again every {SCAN_EVERY_S:g} s"


class OtherCommandError(OperationalError):
    """The steps in the folder are those of another command, and the user has not asked to resume from them."""

    exit_code = ExitCode.USAGE


class UnwritableError(OperationalError):
    """Nothing can be written to the directory of steps, or of logs; the text says why."""

    exit_code = ExitCode.IO_ERROR


class StepsOnDisk:
    """The whole steps of one job in the directory, as this node finds them. Create it in the running loop."""

    def __init__(
        self,
        settings: PersistSettings,
        notify: Notify,
        complaints: Complaints,
        changed: Callable[[], None],
        tasks: Tasks,
    ) -> None:
        """Begin without a scan; `changed` is called when the reported steps have changed."""
        self._settings = settings
        self.folder = step_folder.job_folder(settings.root, settings.job)
        self._notify = notify
        self._complaints = complaints
        self._changed = changed
        self._tasks = tasks
        self._scanning = asyncio.Lock()
        self._scan_requested = asyncio.Event()
        self._made = ""
        """The end of a sentence, which says that this node has made the directory, and on which mount; else empty."""
        self.known = KnownSteps()
        """The results of the last scan."""

    async def start(self) -> None:
        """Check that the disk is writable and scan it, until that succeeds; then scan it at intervals.

        The node joins only after this: otherwise a round could begin from nothing despite a step on the disk. Raises
        `UnwritableError` and `OtherCommandError`.
        """
        first = self._tasks.spawn(self._scan_first(), name="scan")
        done, _ = await asyncio.wait([first], timeout=SCAN_WITHIN_S)
        if not done:
            text = f"{self._settings.root} does not answer within {SCAN_WITHIN_S:g} s: this node joins when it does"
            self._notify(Level.WARNING, text, "disk_hangs")
        await first
        # With a mistyped directory or job, the training would begin anew without a word.
        if not self.known.whole and not self.known.unusable:
            self._notify(
                Level.INFO, f"no step of this job is on the disk yet, in {self.folder}{self._made}", "disk_empty"
            )
        self._compare_commands()
        self._tasks.spawn(self._scan_on(), name="scan")

    def _compare_commands(self) -> None:
        """Warn the user if another command has written the newest step.

        Raises `OtherCommandError` if the job has no name of the user's, so that only the command tells trainings apart.
        """
        newest, command = self.known.newest, self._settings.command
        if newest is None or "" in {newest.command, command} or newest.command == command:
            return
        text = f"step {newest.of.step:,} in {self.folder} was written by a training with another command"
        if self._settings.named:
            self._notify(Level.WARNING, f"{text}: this one goes on from its steps", "other_command")
            return
        job = self._settings.job
        raise OtherCommandError(
            f"{text}, and nothing names this job: give it a folder of its own by --job-id NAME, or give --job-id {job}"
            " to go on from that training"
        )

    async def _scan_first(self) -> None:
        while True:
            if await self._check_writable() and await self.scan():
                return
            await asyncio.sleep(SCAN_EVERY_S)

    async def _check_writable(self) -> bool:
        """Write to the folder; return whether it can be written, or is only full. Raises `UnwritableError`."""
        try:
            self._made = await self._in_thread(self._make_folder) or self._made
        except OSError as error:
            text = f"steps cannot be written to {self.folder}: {error.strerror or error}"
            if error.errno in MISTAKEN:
                raise UnwritableError(f"{text}; see --persist") from error
            is_full = error.errno in FULL
            outlook = "the training begins nonetheless" if is_full else RETRIED
            self._complaints.complain(Work.WRITE, f"{text}; {outlook}")
            return is_full
        return True

    def _make_folder(self) -> str:
        """Make the folder and write to it, in a thread; return a new `_made`, or an empty text. Raises `OSError`."""
        root = self._settings.root
        is_missing = not root.exists()
        check_writable(self.folder)
        return f"; made the directory {root}, {mount_of(root)}" if is_missing else ""

    async def _scan_on(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SCAN_EVERY_S):  # wait_for may swallow the cancellation of this task
                    await self._scan_requested.wait()
            self._scan_requested.clear()
            await self.scan()

    async def scan(self) -> bool:
        """Find the whole steps, in one scan at a time; return whether the disk could be read."""
        async with self._scanning:
            work = partial(step_folder.find_whole, self.folder, self.known.by_folder())
            try:
                whole, problems = await self._in_thread(work)
            except OSError as error:
                text = f"{self.folder} cannot be read: {error.strerror or error}; {RETRIED}"
                self._complaints.complain(Work.SCAN, text)
                return False
        self._complaints.forget(Work.SCAN)
        self._record(whole, problems)
        return True

    def _record(self, whole: list[Manifest], problems: list[str]) -> None:
        known = self.known
        for problem in (problem for problem in problems if problem not in known.problems):
            self._notify(Level.WARNING, problem, "state_not_persisted")
        serial_before, before = known.newest_serial, (known.found, known.unusable)
        known.update(whole, problems, asyncio.get_running_loop().time())
        if known.newest_serial < serial_before and not problems:  # each problem has its own warning
            self._complain_of_loss()
        if (known.found, known.unusable) != before:
            self._changed()

    def _complain_of_loss(self) -> None:
        """Warn the user that the newest step is gone, which no node deletes before a newer one is whole.

        So the directory was deleted, or its file system is not mounted any more, and steps are written to another disk
        than the user thinks.
        """
        self._notify(
            Level.WARNING,
            f"the newest step in {self.folder} is gone, and no node deletes that: is {self._settings.root} still"
            " mounted? The next step is written to the directory that is there now, which is made if it is missing",
            "state_not_persisted",
        )

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        """Return the result of work on the disk; after `STALL_S`, warn the user that the disk does not answer."""
        working = in_thread(work, THREAD)
        done, _ = await asyncio.wait([working], timeout=disk_thread.STALL_S)
        if not done:
            text = f"{self.folder} does not answer: nothing was seen there for {disk_thread.STALL_S:g} s"
            self._complaints.complain(Work.SCAN, text)
        return await working

    def request_scan(self) -> None:
        """Make the next scan follow at once."""
        self._scan_requested.set()

    async def read(self, resume: Resume, rank: int, kind: Kind, room: Room, progress: Progress) -> Commit:
        """Read a part of the step that a round resumes from into memory; return its commit.

        Raises `OSError`, `UnusableError`, `DiskHangsError`, and the errors of `room`.
        """
        manifest = self.known.manifest(resume.disk, resume.step)
        if manifest is None:
            raise UnusableError(f"step {resume.step} is not on the disk any more")
        part = manifest.find(CONTENTS[kind], rank)
        if part is None:
            raise UnusableError(f"it has nothing of rank {rank} of this kind")
        step_name = replace(manifest.of, round=resume.round)  # a step of an earlier run counts as one of round 0
        work = partial(read_part, self.folder / manifest.of.folder, step_name, part, room, progress)
        return await read_in_thread(work, progress)

    def withdraw(self, disk: DiskStep, step: int, why: str, *, may_pass: bool) -> None:
        """Stop reporting a step that could not be read. With `may_pass`, it is tried again after a pause."""
        self.known.withdraw(disk, step, why, asyncio.get_running_loop().time(), may_pass=may_pass)
