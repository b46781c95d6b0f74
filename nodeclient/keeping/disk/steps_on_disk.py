"""Looks from time to time which whole steps are on the disk, and reads the one that a round resumes from.

All that touches the disk runs in daemon threads: a network file system may hang for ever.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.kept_state import DiskStep, Resume
from coordinatord.runtime.tasks import Tasks, in_thread
from nodeclient.core.effects import Level
from nodeclient.keeping.disk import disk_thread, step_folder
from nodeclient.keeping.disk.complaints import Complaints, Notify
from nodeclient.keeping.disk.disk_thread import THREAD, Result, read_in_thread
from nodeclient.keeping.disk.durable_file import Progress, try_out
from nodeclient.keeping.disk.known_steps import KnownSteps
from nodeclient.keeping.disk.part_reader import Room, read_part
from nodeclient.keeping.disk.persist_settings import PersistSettings
from nodeclient.keeping.disk.step_folder import Contents, Manifest, UnusableError
from nodeclient.keeping.parts.part_messages import Kind
from workerlib.contract.arena import Commit

LOOK_WITHIN_S = 10.0
"""How long the first look at the disk may take before the user is warned. The node does not join before that look."""

LOOK_EVERY_S = 10.0
"""The pause between two looks at the disk: other nodes write and delete steps. A round that would begin from nothing
waits until all of its nodes find the same steps."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors of a disk that is full: a node joins all the same, since somebody may make room while it trains."""

MISTAKEN = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP}
)
"""The errors of a directory that is not the right one, or may not be written: these do not pass by themselves."""

AGAIN = f"this is tried again every {LOOK_EVERY_S:g} s"


class OtherCommandError(OperationalError):
    """The steps in the folder are of another command, and nothing says that this one is to go on from them."""

    exit_code = ExitCode.USAGE


class UnwritableError(OperationalError):
    """A directory takes no steps, or no logs; the text says why."""

    exit_code = ExitCode.IO_ERROR


class StepsOnDisk:
    """The whole steps of one job in the directory, as this node finds them. Must be made in the running loop."""

    def __init__(
        self,
        settings: PersistSettings,
        notify: Notify,
        complaints: Complaints,
        changed: Callable[[], None],
        tasks: Tasks,
    ) -> None:
        """Begin without a look at the disk; `changed` is called when the reported steps have changed."""
        self._settings = settings
        self.folder = step_folder.job_folder(settings.root, settings.job)
        self._notify = notify
        self._complaints = complaints
        self._changed = changed
        self._tasks = tasks
        self._looking = asyncio.Lock()
        self._look_now = asyncio.Event()
        self.known = KnownSteps()
        """What the last look found."""

    async def keep_looking(self) -> None:
        """Try the disk out and look at it until that succeeds; then have it looked at from time to time.

        A node that joined before could make a round begin from nothing although there is a step on the disk. Raises
        `UnwritableError` and `OtherCommandError`.
        """
        first = self._tasks.spawn(self._look_until_seen(), name="look")
        done, _ = await asyncio.wait([first], timeout=LOOK_WITHIN_S)
        if not done:
            text = f"{self._settings.root} does not answer within {LOOK_WITHIN_S:g} s: this node joins when it does"
            self._notify(Level.WARNING, text, "disk_hangs")
        await first
        # By a mistyped directory or job, all would begin anew unseen.
        if not self.known.whole and not self.known.unusable:
            self._notify(Level.INFO, f"no step of this job is on the disk yet, in {self.folder}", "disk_empty")
        self._compare_commands()
        self._tasks.spawn(self._look_on(), name="look")

    def _compare_commands(self) -> None:
        """Warn the user if another command has written the newest step.

        Raises `OtherCommandError` if nobody has named the job: then only the command tells trainings apart.
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

    async def _look_until_seen(self) -> None:
        while True:
            if await self._try_out() and await self.look():
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _try_out(self) -> bool:
        """Write to the folder; return whether the disk answers. Raises `UnwritableError`."""
        try:
            await self._in_thread(partial(try_out, self.folder))
        except OSError as error:
            text = f"steps cannot be written to {self.folder}: {error.strerror or error}"
            if error.errno in MISTAKEN:
                raise UnwritableError(f"{text}; see --persist") from error
            is_full = error.errno in FULL
            self._complaints.complain(f"{text}; {'the training begins nonetheless' if is_full else AGAIN}")
            return is_full
        return True

    async def _look_on(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):  # wait_for may swallow the cancellation of this task
                    await self._look_now.wait()
            self._look_now.clear()
            await self.look()

    async def look(self) -> bool:
        """Look which steps are whole; return whether the disk could be read. One look is made at a time."""
        async with self._looking:
            work = partial(step_folder.find_whole, self.folder, self.known.by_folder())
            try:
                whole, problems = await self._in_thread(work)
            except OSError as error:
                self._complaints.complain(f"{self.folder} cannot be read: {error.strerror or error}; {AGAIN}")
                return False
        self._record(whole, problems)
        return True

    def _record(self, whole: list[Manifest], problems: list[str]) -> None:
        known = self.known
        for problem in (problem for problem in problems if problem not in known.problems):
            self._notify(Level.WARNING, problem, "state_not_persisted")
        serial_before, before = known.newest_serial, (known.found, known.unusable)
        known.update(whole, problems, asyncio.get_running_loop().time())
        if known.newest_serial < serial_before and not problems:
            self._complain_of_loss()
        if (known.found, known.unusable) != before:
            self._changed()

    def _complain_of_loss(self) -> None:
        """Warn the user that the newest step is gone: no node deletes it before a newer one is whole.

        So the directory was deleted, or its file system is not mounted any more. Steps are then written to another disk
        than the user thinks. If a step is damaged, that may be the newest one, and the user was told.
        """
        self._notify(
            Level.WARNING,
            f"the newest step in {self.folder} is gone, and no node deletes that: is {self._settings.root} still"
            " mounted? The next step is written to the directory that is there now, which is made if it is missing",
            "state_not_persisted",
        )

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        """Return the result of work at the disk; after `STALL_S`, warn the user that it does not answer."""
        working = in_thread(work, THREAD)
        done, _ = await asyncio.wait([working], timeout=disk_thread.STALL_S)
        if not done:
            text = f"{self.folder} does not answer: nothing was seen there for {disk_thread.STALL_S:g} s"
            self._complaints.complain(text)
        return await working

    def look_now(self) -> None:
        """Have the next look made at once."""
        self._look_now.set()

    async def read(self, resume: Resume, rank: int, kind: Kind, room: Room, progress: Progress) -> Commit:
        """Read a part of the step that a round resumes from into memory; return its control words.

        Raises `OSError`, `UnusableError` and `DiskHangsError`, and what `room` raises.
        """
        manifest = self.known.manifest(resume.disk, resume.step)
        if manifest is None:
            raise UnusableError(f"step {resume.step} is not on the disk any more")
        contents = Contents.SHARD if kind is Kind.BIG else Contents.SMALL
        folder = self.folder
        work = partial(read_part, folder, manifest, (rank, contents), resume.round, room, progress)
        return await read_in_thread(work, progress)

    def withdraw(self, disk: DiskStep, step: int, why: str, *, may_pass: bool) -> None:
        """Stop reporting a step that cannot be read. With `may_pass` it is tried again after a pause."""
        self.known.withdraw(disk, step, why, asyncio.get_running_loop().time(), may_pass=may_pass)
