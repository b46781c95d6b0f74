"""The steps of a job on the disk that are whole, as the last scan found them, and which of them cannot be read.

The node reports them: the coordinator chooses the step that a round resumes from among those that all nodes can read.
Pure: the caller scans, and passes the time in seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.kept_state import PERSISTED_MAX, PERSISTED_PARTS_MAX, DiskStep, KeptStep, PersistedStep
from coordinatord.protocol.text import clip
from nodeclient.core.kept_groups import grouped
from nodeclient.core.persist_attempt import StepOnDisk
from nodeclient.keeping.disk.step_folder import Manifest

RETRY_S = 30.0
"""The first pause before a step that is not damaged is read again. Each further one is twice as long."""

RETRY_MAX_S = 600.0
"""The longest such pause."""

Key = tuple[str, KeptStep]
"""The run that did a step, and the step."""


class _ReadFailure(Struct, frozen=True):
    """The last failure to read a step."""

    why: str
    pause_s: float
    until: float | None
    """When the step may be read again; None if never."""


class UnusableSteps:
    """The steps that could not be read.

    A damaged step is never read again by this process. After an error that may pass, of the file system or for lack of
    memory, a step is tried again. Each attempt costs a whole round, so the pauses grow.
    """

    def __init__(self) -> None:
        self._failures: dict[Key, _ReadFailure] = {}

    def record(self, key: Key, why: str, now: float, *, may_pass: bool) -> None:
        """Record that a step could not be read. With `may_pass`, it is not damaged."""
        last = self._failures.get(key)
        pause_s = RETRY_S if last is None else min(2 * last.pause_s, RETRY_MAX_S)
        self._failures[key] = _ReadFailure(why, pause_s, now + pause_s if may_pass else None)

    def forget_gone(self, present: Collection[Key]) -> None:
        """Forget the steps that are not on the disk any more."""
        self._failures = {key: failure for key, failure in self._failures.items() if key in present}

    def is_barred(self, key: Key, now: float) -> bool:
        """Whether a step must not be read now."""
        failure = self._failures.get(key)
        return failure is not None and (failure.until is None or now < failure.until)

    def why(self, steps: Iterable[Key], now: float) -> str:
        """Return why the first step that must not be read now is unusable; empty if all may be read."""
        return next((self._failures[key].why for key in steps if self.is_barred(key, now)), "")


class KnownSteps:
    """The results of the last scan of the disk."""

    def __init__(self) -> None:
        self._manifests: dict[Key, Manifest] = {}
        """The manifests of the steps that may be read, the newest first."""
        self._unusable = UnusableSteps()
        self.problems: set[str] = set()
        """Texts about folders that hold no usable step."""
        self.whole: tuple[StepOnDisk, ...] = ()
        """All whole steps, the newest first."""
        self.stays: tuple[int, ...] = ()
        """The serials of older steps that must not be deleted, by the coordinator's last order to commit a step. A
        serial counts the whole steps of a job."""
        self.found: tuple[PersistedStep, ...] = ()
        """The newest steps that may be read, and those in `stays`: they tell a restarted coordinator what stays."""
        self.unusable = ""
        """Why a step on the disk is unusable, for the coordinator; empty if none is known to be."""

    def update(self, whole: Sequence[Manifest], problems: Collection[str], now: float) -> None:
        """Record the results of a scan: the whole steps, the newest first, and texts about other folders."""
        self.problems = {*problems}
        manifests: dict[Key, Manifest] = {}
        for manifest in whole:
            manifests.setdefault(_key(manifest), manifest)  # two attempts may write one step
        self._unusable.forget_gone(manifests.keys())
        self._manifests = {
            key: manifest for key, manifest in manifests.items() if not self._unusable.is_barred(key, now)
        }
        self.whole = tuple(
            StepOnDisk(manifest.serial, manifest.of.folder, usable=self._manifests.get(_key(manifest)) is manifest)
            for manifest in whole
        )
        # If there are more steps than fit into a report, those of `stays` take precedence.
        preferred = sorted(self._manifests.values(), key=lambda each: (each.serial not in self.stays, -each.serial))
        reported = sorted(preferred[:PERSISTED_MAX], key=lambda each: -each.serial)
        self.found = tuple(map(_summary, reported))
        self.unusable = clip(self._unusable.why(manifests, now) or next(iter(problems), ""), SENTENCE_MAX)

    @property
    def newest(self) -> Manifest | None:
        """The manifest of the newest step that may be read; None if there is none."""
        return next(iter(self._manifests.values()), None)

    @property
    def newest_serial(self) -> int:
        """The highest serial of a whole step; 0 if there is none."""
        return max((step.serial for step in self.whole), default=0)

    def by_folder(self) -> dict[str, Manifest]:
        """Return the manifests of the steps that may be read, by folder. A scan does not read these again."""
        return {manifest.of.folder: manifest for manifest in self._manifests.values()}

    def manifest(self, disk: DiskStep | None, step: int) -> Manifest | None:
        """Return the manifest of a step; None if the step is gone or must not be read."""
        return None if disk is None else self._manifests.get((disk.run, KeptStep(disk.round, step)))

    def withdraw(self, disk: DiskStep, step: int, why: str, now: float, *, may_pass: bool) -> None:
        """Stop reporting a step that could not be read. With `may_pass`, it is tried again after a pause."""
        key = disk.run, KeptStep(disk.round, step)
        self._unusable.record(key, why, now, may_pass=may_pass)
        self._manifests.pop(key, None)  # so `by_folder` lacks it, and the next scan reads it anew
        self.found = tuple(persisted for persisted in self.found if (persisted.run, persisted.at) != key)
        self.unusable = clip(why, SENTENCE_MAX)


def _key(manifest: Manifest) -> Key:
    return manifest.of.run, manifest.of.at


def _summary(manifest: Manifest) -> PersistedStep:
    # Three groups are usual. The most useful ones come first, so the limit of a report cuts the others.
    parts = grouped(manifest.parts())[:PERSISTED_PARTS_MAX]
    return PersistedStep(manifest.serial, manifest.of.run, parts)
