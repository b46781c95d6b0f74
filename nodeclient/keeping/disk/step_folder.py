"""The folder of a step on the disk: which files it has, when it is whole, and how it is deleted.

The state of one rank is one to three files (`Contents`), each with a note beside it, which describes it. When all nodes
have written, one of them, the committer, turns the notes into one manifest. A folder without a manifest does not count.
So a step appears at one instant, and since its manifest is deleted first, it disappears at one instant too.

Nothing in the folders is trusted: names, sizes and numbers are checked, and foreign files are left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from msgspec import Meta
from msgspec.structs import asdict

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import RANKS_MAX, Count, Counter, Name, Step
from coordinatord.protocol.kept_state import KEEP_STEPS_MAX, SERIAL_MAX, Digest, KeptParts, KeptStep, Serial, Size
from coordinatord.protocol.schema import SchemaError, Strict, check, printable
from coordinatord.runtime.private_files import flush_directory
from nodeclient.keeping.disk.durable_file import Progress, make_folder, read_small_file, write_file

MANIFEST = "manifest.json"

NOTE = ".note"
"""The suffix of a note."""

MANIFEST_MAX = 64 << 20
"""The longest manifest in bytes: that of 100,000 ranks has 30 MB."""

NOTE_MAX = 4096
"""The longest note in bytes."""

FILE_PROGRESS = 1
"""The progress, in bytes, for each file that is examined or deleted. A busy file server takes a moment for each of the
tens of thousands of files of a large job, and without progress it would seem to hang."""

FOLDERS_MAX = 2 * KEEP_STEPS_MAX
"""The most whole or damaged steps of a job that a scan examines: these programs never keep more."""

_FORMAT = 1
"""The version of the manifest's format."""

_NAME_MAX = 120
"""The most characters in the name of a job's folder; file systems take 255 bytes."""

_FOLDER = re.compile(r"step-\d{1,16}-round-\d{1,10}-[0-9a-f]{12}(-[0-9]{1,16})?")
"""The name of a step's folder, as `StepName.folder` makes it."""


class UnusableError(OperationalError):
    """A folder holds no whole step, or a part of it cannot be used; the text says why."""


class Contents(StrEnum):
    """The kinds of files of a step."""

    SHARD = "shard"
    """One shard of the big state, as tensors."""
    BUFFERS = "buffers"
    """The buffers of one rank, as tensors: with them stock torch has a whole model. `ctx.keep` does not read them."""
    SMALL = "small"
    """The small state of one rank, with the same bytes as in memory."""


class PartFile(Strict, frozen=True):
    """A file of a step."""

    name: Annotated[str, printable(80, least=1)]
    contents: Contents
    rank: Count
    """The rank whose state this is."""
    shard: Count
    bytes: Size
    crc32: Digest
    """The digest of all its bytes."""


class StepName(Strict, frozen=True):
    """The identity of a step. Its number is not enough, because runs and rounds may repeat it."""

    run: Name
    round: Counter
    step: Step
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    shards: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    attempt: Annotated[str, Meta(pattern="^[0-9]{0,16}$")] = ""
    """The number of the attempt that writes the step. Two attempts at one step share no file, so the files of one that
    failed can be deleted while another one writes."""

    @property
    def at(self) -> KeptStep:
        """The step and its round."""
        return KeptStep(self.round, self.step)

    @property
    def folder(self) -> str:
        """The name of the folder."""
        run = hashlib.sha256(self.run.encode()).hexdigest()[:12]
        return f"step-{self.step}-round-{self.round}-{run}" + (f"-{self.attempt}" if self.attempt else "")


class Note(Strict, frozen=True):
    """The contents of the note beside a file."""

    of: StepName
    file: PartFile


class Manifest(Strict, frozen=True):
    """The contents of the manifest of a whole step: all of its files."""

    format: Annotated[int, Meta(ge=_FORMAT, le=_FORMAT)]
    serial: Serial
    """Counts the whole steps of the job over all runs: the newest one has the highest."""
    of: StepName
    files: Annotated[tuple[PartFile, ...], Meta(min_length=1, max_length=2 * RANKS_MAX)]
    command: Annotated[str, printable(16)] = ""
    """The digest of the command that did the step; empty if not known."""

    def find(self, contents: Contents, rank: int) -> PartFile | None:
        """Return the file of a rank; None if there is none."""
        return next((file for file in self.files if file.contents is contents and file.rank == rank), None)

    def parts(self) -> list[KeptParts]:
        """Return the parts of the step, one for each file that `ctx.keep` reads."""
        of = self.of
        return [
            KeptParts(
                of.round,
                of.step,
                of.world_size,
                of.shards,
                first_rank=file.rank,
                ranks=1,
                first_shard=file.shard,
                big=file.contents is Contents.SHARD,
                small=file.contents is Contents.SMALL,
                pending=False,
                protected=False,
            )
            for file in self.files
            if file.contents is not Contents.BUFFERS
        ]


Noted = TypeVar("Noted", Note, Manifest)


def job_folder(root: Path, job: str) -> Path:
    """Return the folder for the steps of a job, whose name is escaped, and cut if it is too long for a file."""
    name = quote(job, safe=" +,=@").replace(".", "%2E")  # a job may be named `..`
    if len(name) > _NAME_MAX:
        # A hyphen and a digest make 13 characters.
        name = f"{name[: _NAME_MAX - 13]}-{hashlib.sha256(job.encode()).hexdigest()[:12]}"
    return root / name


def file_name(contents: Contents, rank: int, shard: int) -> str:
    """Return the name of a file with the state of a rank; those of shards are as in torch's distributed checkpoints."""
    match contents:
        case Contents.SHARD:
            return f"shard-{shard + 1:05}-model-00001-of-00001.safetensors"
        case Contents.BUFFERS:
            return "buffers.safetensors"
        case Contents.SMALL:
            return f"small-{rank:05}.kept"


def write_note(folder: Path, note: Note, progress: Progress) -> None:
    """Write the note of a file that has been written. Raises `OSError` and `WorkCancelledError`."""
    write_file(folder / f"{note.file.name}{NOTE}", [_json(note)], progress)


def find_whole(
    job: Path, known: Mapping[str, Manifest] | None = None, progress: Progress | None = None
) -> tuple[list[Manifest], list[str]]:
    """Return the whole steps of a job, the newest first, and texts about unusable folders. Raises `OSError`.

    `known` has manifests by folder; of these steps, only the presence of the manifest is checked. `progress` grows with
    each file that is examined.
    """
    progress = progress or Progress()
    whole: list[Manifest] = []
    problems: list[str] = []
    for folder in _folders(job):
        if len(whole) + len(problems) == FOLDERS_MAX:
            break
        try:
            if (manifest := (known or {}).get(folder.name)) is None:
                manifest = read_manifest(folder, progress)
            else:
                (folder / MANIFEST).lstat()
                progress.add(FILE_PROGRESS)
        except FileNotFoundError:
            progress.add(FILE_PROGRESS)
            continue  # not whole yet, or not any more
        except (OSError, UnusableError) as error:
            problems.append(f"{folder} is of no use: {error}")
            continue
        whole.append(manifest)
    # Two attempts that end at one moment may get the same number, so the folder decides: all nodes must agree.
    return sorted(whole, key=lambda manifest: (manifest.serial, manifest.of.folder), reverse=True), problems


def read_manifest(folder: Path, progress: Progress) -> Manifest:
    """Read and check the manifest of a step. Raises `FileNotFoundError`, `OSError` and `UnusableError`."""
    manifest = _read(folder / MANIFEST, Manifest, MANIFEST_MAX, progress)
    if manifest.of.folder != folder.name:
        raise UnusableError("its manifest is that of another step")
    _check_whole(manifest.of, manifest.files)
    _check_sizes(folder, manifest.files, progress)
    return manifest


def commit(job: Path, name: StepName, smalls: int, progress: Progress, command: str = "") -> Manifest:
    """Make a step whole once all files are written: its shards, and `smalls` small states.

    `command` is the digest of the command that did the step. Progress grows with each file. Raises `OSError`,
    `UnusableError` and `WorkCancelledError`.
    """
    folder = job / name.folder
    try:
        return read_manifest(folder, progress)  # it was made whole before, and the report of that was lost
    except FileNotFoundError:
        pass
    paths = [path for path in folder.iterdir() if path.name.endswith(NOTE)]
    notes = [_read(path, Note, NOTE_MAX, progress) for path in paths]
    files = tuple(sorted((note.file for note in notes if note.of == name), key=lambda file: file.name))
    _check_all_written(name, files, smalls, job.parent)
    _check_whole(name, files)
    _check_sizes(folder, files, progress)
    newest = next(iter(find_whole(job, progress=progress)[0]), None)
    serial = 1 if newest is None else newest.serial + 1
    if serial > SERIAL_MAX:
        raise UnusableError(f"a step in {job} has the highest number that there can be, so none can follow: remove it")
    manifest = Manifest(_FORMAT, serial, name, files, command)
    write_file(folder / MANIFEST, [_json(manifest)], progress)
    for path in paths:
        path.unlink(missing_ok=True)
        progress.add(FILE_PROGRESS)
    return manifest


def unfinished(job: Path, name: StepName, progress: Progress) -> set[str]:
    """Return the names of the folders of steps that attempts before `name` have left unfinished.

    Call it after the `commit` of `name`: until then, its own folder is unfinished too. Later attempts of the same run
    may be in progress. No attempt of another run is, since the folder of the job is claimed for this run. Folders that
    cannot be read are left out. Raises `OSError` and `WorkCancelledError`.
    """
    found = set()
    our_run, our_attempt = _run_and_attempt(name.folder)
    for folder in _folders(job):
        run, attempt = _run_and_attempt(folder.name)
        is_later = run == our_run and attempt > our_attempt
        if not is_later and _lacks_manifest(folder):
            found.add(folder.name)
        progress.add(FILE_PROGRESS)
    return found


def delete_steps(job: Path, names: Collection[str]) -> None:
    """Delete steps by the names of their folders. Raises `OSError` if one remains, after the others are deleted."""
    failure: OSError | None = None
    for folder in (folder for folder in _folders(job) if folder.name in names):
        try:
            (folder / MANIFEST).unlink(missing_ok=True)
            flush_directory(folder)
            shutil.rmtree(folder)
        except OSError as error:  # it may be that of another user
            failure = error
    if failure is not None:
        raise failure


def delete_attempts(job: Path, run: str, attempts: Collection[int], progress: Progress) -> None:
    """Delete the files of a run's failed attempts, as far as that is possible. Raises `OSError`.

    All nodes that write do this at the same time, so files may vanish meanwhile.
    """
    # Only the run and the attempt of these names count.
    failed = {_run_and_attempt(StepName(run, 0, 0, 1, 1, str(attempt)).folder) for attempt in attempts}
    for folder in _folders(job) if failed else ():
        if _run_and_attempt(folder.name) in failed and _lacks_manifest(folder):
            shutil.rmtree(folder, ignore_errors=True)
            progress.add(FILE_PROGRESS)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Delete files of a step that does not become whole, each after its note. Raises `OSError`.

    The folder is left, since other nodes may be about to write into it.
    """
    for name in names:
        (folder / f"{name}{NOTE}").unlink(missing_ok=True)
        (folder / name).unlink(missing_ok=True)


def begin(job: Path, name: StepName) -> Path:
    """Make the folder of a step if it is missing; return it. Raises `OSError` and `UnusableError`."""
    folder = job / name.folder
    make_folder(folder)
    if folder.is_symlink():
        raise UnusableError(f"{folder} is a symbolic link, which these programs never make")
    return folder


def _folders(job: Path) -> list[Path]:
    try:
        with os.scandir(job) as entries:
            named = [entry for entry in entries if _FOLDER.fullmatch(entry.name)]
            found = [entry.name for entry in named if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return [job / name for name in sorted(found, key=_sort_key, reverse=True)]


def _lacks_manifest(folder: Path) -> bool:
    """Whether a folder is known to have no manifest; an error, such as that of a file server, says nothing."""
    try:
        (folder / MANIFEST).lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _sort_key(name: str) -> tuple[int, int, str]:
    """Return the key by which a scan sorts folders: the round, the step, and the digest of the run.

    It decides which folders a scan leaves out beyond `FOLDERS_MAX`. The order of whole steps is that of their serials.
    """
    _, step, _, number, run, *_ = name.split("-")
    return int(number), int(step), run


def _run_and_attempt(name: str) -> tuple[str, int]:
    """Return the digest of the run and the number of the attempt in a folder's name; 0 if it names no attempt."""
    run, _, attempt = name.split("-", 4)[-1].partition("-")
    return run, int(attempt or "0")


def _check_all_written(name: StepName, files: tuple[PartFile, ...], smalls: int, root: Path) -> None:
    """Check that the files of all nodes are present. Raises `UnusableError`."""
    shards_found = len({file.shard for file in files if file.contents is Contents.SHARD})
    small_found = sum(file.contents is Contents.SMALL for file in files)
    if shards_found < name.shards or small_found < smalls:
        shards, ranks = f"{shards_found} of {name.shards} shards", f"{small_found} of {smalls} ranks"
        found = shards if shards_found < name.shards else ranks
        raise UnusableError(
            f"all nodes have written, and only {found} are found: is {root} one directory for all nodes?"
        )


def _check_whole(name: StepName, files: tuple[PartFile, ...]) -> None:
    """Check that files make up a whole step. Raises `UnusableError`."""
    names = {file.name for file in files}
    if len(names) < len(files) or any(file.rank >= name.world_size or file.shard >= name.shards for file in files):
        raise UnusableError("its files do not fit together")
    for file in files:
        if file.name != file_name(file.contents, file.rank, file.shard):
            raise UnusableError(f"{file.name!r} is not the name of such a file")
    missing = {*range(name.shards)} - {file.shard for file in files if file.contents is Contents.SHARD}
    if missing:
        raise UnusableError(f"{len(missing)} of {name.shards} shards are not written, such as shard {min(missing)}")


def _check_sizes(folder: Path, files: tuple[PartFile, ...], progress: Progress) -> None:
    for file in files:
        try:
            size = (folder / file.name).lstat().st_size
        except FileNotFoundError:
            raise UnusableError(f"{file.name} is missing") from None
        progress.add(FILE_PROGRESS)
        if size != file.bytes:
            raise UnusableError(f"{file.name} has {size:,} bytes, and {file.bytes:,} were written")


def _read(path: Path, kind: type[Noted], limit: int, progress: Progress) -> Noted:
    try:
        text = read_small_file(path, limit)
        progress.add(len(text))
        return check(json.loads(text), kind, path.name)
    except (SchemaError, ValueError, RecursionError) as error:
        raise UnusableError(f"{path.name} cannot be read: {error}") from None


def _json(message: Any) -> bytes:
    return json.dumps(message, default=asdict, indent=1).encode()
