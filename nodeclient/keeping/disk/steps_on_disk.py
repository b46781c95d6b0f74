"""Which whole steps are on the disk: looks there from time to time, and reads the one that a round resumes from.

All that touches the disk runs in daemon threads: a network file system may hang for ever.
"""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.kept_state import (
    PERSISTED_MAX,
    PERSISTED_PARTS_MAX,
    DiskStep,
    KeptStep,
    PersistedStep,
    Resume,
)
from coordinatord.protocol.text import clip
from coordinatord.runtime.tasks import Tasks, in_thread
from nodeclient.core import kept_groups
from nodeclient.core.effects import Level
from nodeclient.core.persist_attempt import StepOnDisk
from nodeclient.keeping.disk import disk_thread, step_folder
from nodeclient.keeping.disk.disk_thread import THREAD, Result, read_in_thread
from nodeclient.keeping.disk.durable_file import Progress, try_out
from nodeclient.keeping.disk.part_reader import Room, read_part
from nodeclient.keeping.disk.persist_settings import PersistSettings
from nodeclient.keeping.disk.step_folder import Contents, Manifest, UnusableError
from nodeclient.keeping.parts.part_messages import Kind
from workerlib.contract.arena import Commit

AGAIN_S = 30.0
"""The first pause after an error of the file system; each further one is twice as long."""

AGAIN_MAX_S = 600.0

Key = tuple[str, KeptStep]
"""A step by the run that did it."""


class UnusableSteps:
    """The steps that could not be read, each with the reason, and when they are tried again.

    A step that is damaged is never tried again in the life of this process. A file system that fails may soon work
    again. A whole round is begun for each attempt, so the pauses grow. The caller passes the time, in seconds.
    """

    def __init__(self) -> None:
        self._barred_until: dict[Key, float] = {}
        self._pause_s: dict[Key, float] = {}
        self._why: dict[Key, str] = {}

    def note(self, key: Key, why: str, now: float, *, may_pass: bool) -> None:
        """Note that a step could not be read; with `may_pass` the file system has failed, and not the step."""
        pause_s = min(2 * self._pause_s.get(key, AGAIN_S / 2), AGAIN_MAX_S)
        self._pause_s[key], self._why[key] = pause_s, why
        self._barred_until[key] = now + pause_s if may_pass else math.inf

    def forget_gone(self, there: Collection[Key]) -> None:
        """Forget the steps that are not on the disk any more."""
        for key in self._why.keys() - {*there}:
            del self._barred_until[key], self._pause_s[key], self._why[key]

    def is_barred(self, key: Key, now: float) -> bool:
        """Whether a step is not to be tried now."""
        return now < self._barred_until.get(key, -math.inf)

    def why(self, there: Iterable[Key], now: float) -> str:
        """Return why the first of these steps that is not to be tried now is of no use; empty if all can be tried."""
        return next((self._why[key] for key in there if self.is_barred(key, now)), "")


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

Notify = Callable[[Level, str, str], None]


class Complaints:
    """Warns the user of what is wrong with the disk, and of nothing twice in a row."""

    def __init__(self, notify: Notify) -> None:
        """Begin without a complaint."""
        self._notify = notify
        self._last = ""

    def complain(self, text: str) -> None:
        """Warn the user, unless the last warning was the same. Texts that differ only before `: ` are the same."""
        if text.partition(": ")[2] != self._last.partition(": ")[2] or not self._last:
            self._notify(Level.WARNING, text, "state_not_persisted")
        self._last = text

    def forget(self) -> None:
        """Note that all went well: the next complaint is shown even if it is the same."""
        self._last = ""


class OtherCommandError(OperationalError):
    """The steps in the folder are of another command, and nothing says that this one is to go on from them."""

    exit_code = ExitCode.USAGE


class UnwritableError(OperationalError):
    """The directory takes no steps; the text says why."""

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
        self._manifests: dict[Key, Manifest] = {}
        """The manifests of the steps that may be read, the newest first."""
        self._unusable = UnusableSteps()
        self._looking = asyncio.Lock()
        self._look_now = asyncio.Event()
        self._problems: set[str] = set()
        """What was wrong with steps at the last look."""
        self.whole: tuple[StepOnDisk, ...] = ()
        """All whole steps on the disk at the last look."""
        self.found: tuple[PersistedStep, ...] = ()
        """The newest whole steps on the disk, without those that could not be read."""
        self.unusable = ""
        """Why something on the disk is of no use to this node."""

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
        if not self.whole and not self.unusable:  # by a mistyped directory or job, all would begin anew unseen
            self._notify(Level.INFO, f"no step of this job is on the disk yet, in {self.folder}", "disk_empty")
        self._compare_commands()
        self._tasks.spawn(self._look_on(), name="look")

    def _compare_commands(self) -> None:
        """Warn the user if another command has written the newest step.

        Raises `OtherCommandError` if nobody has named the job: then only the command tells trainings apart.
        """
        newest, command = next(iter(self._manifests.values()), None), self._settings.command
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
            known = {manifest.of.folder: manifest for manifest in self._manifests.values()}
            try:
                whole, problems = await self._in_thread(partial(step_folder.find_whole, self.folder, known))
            except OSError as error:
                self._complaints.complain(f"{self.folder} cannot be read: {error.strerror or error}; {AGAIN}")
                return False
        self._take_in(whole, problems)
        return True

    def _take_in(self, whole: list[Manifest], problems: list[str]) -> None:
        """Take in what a look has found: the whole steps, the newest first, and what is wrong with others."""
        for problem in problems:
            if problem not in self._problems:
                self._notify(Level.WARNING, problem, "state_not_persisted")
        self._problems = {*problems}
        serial_before = self.newest_serial
        now = asyncio.get_running_loop().time()
        manifests: dict[Key, Manifest] = {}
        for manifest in whole:
            manifests.setdefault(_key(manifest), manifest)  # two attempts may write one step
        self._unusable.forget_gone(manifests.keys())
        self._manifests = {
            key: manifest for key, manifest in manifests.items() if not self._unusable.is_barred(key, now)
        }
        self.whole = tuple(
            StepOnDisk(manifest.serial, manifest.of.folder, self._manifests.get(_key(manifest)) is manifest)
            for manifest in whole
        )
        if self.newest_serial < serial_before and not problems:
            self._complain_of_loss()
        before = self.found, self.unusable
        self.found = tuple(map(_summary, [*self._manifests.values()][:PERSISTED_MAX]))
        self.unusable = clip(self._unusable.why(manifests, now) or next(iter(problems), ""), MESSAGE_MAX)
        if (self.found, self.unusable) != before:
            self._changed()

    @property
    def newest_serial(self) -> int:
        """The highest serial of a whole step on the disk at the last look; 0 if there was none."""
        return max((step.serial for step in self.whole), default=0)

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
        disk = resume.disk
        manifest = None if disk is None else self._manifests.get((disk.run, KeptStep(disk.round, resume.step)))
        if manifest is None:
            raise UnusableError(f"step {resume.step} is not on the disk any more")
        contents = Contents.SHARD if kind is Kind.BIG else Contents.SMALL
        folder = self.folder
        work = partial(read_part, folder, manifest, (rank, contents), resume.round, room, progress)
        return await read_in_thread(work, progress)

    def withdraw(self, disk: DiskStep, step: int, why: str, *, may_pass: bool) -> None:
        """Stop reporting a step that cannot be read. With `may_pass` it is tried again after a pause."""
        key = disk.run, KeptStep(disk.round, step)
        self._unusable.note(key, why, asyncio.get_running_loop().time(), may_pass=may_pass)
        self._manifests.pop(key, None)  # so that the next look reads its manifest anew
        self.found = tuple(persisted for persisted in self.found if (persisted.run, persisted.at) != key)
        self.unusable = clip(why, MESSAGE_MAX)


def _key(manifest: Manifest) -> Key:
    return manifest.of.run, manifest.of.at


def _summary(manifest: Manifest) -> PersistedStep:
    parts = kept_groups.grouped(kept_groups.merged(manifest.parts()))[:PERSISTED_PARTS_MAX]
    return PersistedStep(manifest.serial, manifest.of.run, parts)
