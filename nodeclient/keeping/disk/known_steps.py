"""Which whole steps of a job are on the disk, as the last look there found them, and which of them cannot be read.

Pure: the caller looks, and passes the time in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.kept_state import PERSISTED_MAX, PERSISTED_PARTS_MAX, DiskStep, KeptStep, PersistedStep
from coordinatord.protocol.text import clip
from nodeclient.core import kept_groups
from nodeclient.core.persist_attempt import StepOnDisk
from nodeclient.keeping.disk.step_folder import Manifest

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

    def record(self, key: Key, why: str, now: float, *, may_pass: bool) -> None:
        """Record that a step could not be read; with `may_pass` the file system has failed, and not the step."""
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


class KnownSteps:
    """What the last look at the disk found."""

    def __init__(self) -> None:
        self._manifests: dict[Key, Manifest] = {}
        """The manifests of the steps that may be read, the newest first."""
        self._unusable = UnusableSteps()
        self.problems: set[str] = set()
        """What was wrong with steps."""
        self.whole: tuple[StepOnDisk, ...] = ()
        """All whole steps."""
        self.found: tuple[PersistedStep, ...] = ()
        """The newest whole steps, without those that could not be read."""
        self.unusable = ""
        """Why something on the disk is of no use to this node."""

    def update(self, whole: Sequence[Manifest], problems: Collection[str], now: float) -> None:
        """Replace what is known by what a look found: the whole steps, the newest first, and what is wrong."""
        self.problems = {*problems}
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
        self.found = tuple(map(_summary, [*self._manifests.values()][:PERSISTED_MAX]))
        self.unusable = clip(self._unusable.why(manifests, now) or next(iter(problems), ""), MESSAGE_MAX)

    @property
    def newest(self) -> Manifest | None:
        """The manifest of the newest step that may be read; None if there is none."""
        return next(iter(self._manifests.values()), None)

    @property
    def newest_serial(self) -> int:
        """The highest serial of a whole step; 0 if there is none."""
        return max((step.serial for step in self.whole), default=0)

    def by_folder(self) -> dict[str, Manifest]:
        """Return the manifests of the steps that may be read, by the names of their folders."""
        return {manifest.of.folder: manifest for manifest in self._manifests.values()}

    def manifest(self, disk: DiskStep | None, step: int) -> Manifest | None:
        """Return the manifest of a step; None if the step may not be read."""
        return None if disk is None else self._manifests.get((disk.run, KeptStep(disk.round, step)))

    def withdraw(self, disk: DiskStep, step: int, why: str, now: float, *, may_pass: bool) -> None:
        """Stop reporting a step that cannot be read. With `may_pass` it is tried again after a pause."""
        key = disk.run, KeptStep(disk.round, step)
        self._unusable.record(key, why, now, may_pass=may_pass)
        self._manifests.pop(key, None)  # so that the next look reads its manifest anew
        self.found = tuple(persisted for persisted in self.found if (persisted.run, persisted.at) != key)
        self.unusable = clip(why, MESSAGE_MAX)


def _key(manifest: Manifest) -> Key:
    return manifest.of.run, manifest.of.at


def _summary(manifest: Manifest) -> PersistedStep:
    parts = kept_groups.grouped(kept_groups.merged(manifest.parts()))[:PERSISTED_PARTS_MAX]
    return PersistedStep(manifest.serial, manifest.of.run, parts)
