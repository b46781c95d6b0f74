"""Lists the rounds of which this host's nodes have log files, and deletes the files of a round (`--log-keep`).

A log directory may have files of earlier nodeclients, and of other hosts that share it. So each node writes a *note*
beside its files, with its name, its host, the round and its ranks: a hidden file of JSON, a `LoggedRound`. By it the
files are attributed to a node later. A node locks its note while it writes files, so that no other process deletes
them. All methods wait for a disk, so call them in a thread.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from pathlib import Path
from urllib.parse import unquote

from msgspec.structs import asdict, replace

from coordinatord.protocol.schema import SchemaError, check
from nodeclient.core.logged_rounds import LoggedRound
from nodeclient.output.log_paths import LogPaths, quoted

ROUNDS_MAX = 10_000
"""The limit of rounds found on the disk: searching for more would take minutes on a network file system."""

NOTE_BYTES_MAX = 4_096
"""The limit of one note: a few names and numbers."""

_NOTE = re.compile(r"\.nodeclient-(.*)\.json")
_ROUND = re.compile(r"round_\d{1,10}", re.ASCII)
_RANK = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_LOGS = re.compile(r"(?:stdout|stderr)\.log(?:\.\d{1,6})?", re.ASCII)
_FILTERED = re.compile(r"filtered_(?:stdout|stderr)\.log(?:\.\d{1,6})?", re.ASCII)

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_folder(base: Path | int, *parts: str) -> Iterator[int]:
    """Yield the descriptor of a directory below `base`, along a path without symbolic links. Raises `OSError`."""
    fd = os.dup(base) if isinstance(base, int) else os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


class LogCatalogue:
    """The rounds of one job with files of one host's nodes below one log directory."""

    def __init__(self, log_dir: Path, job: str, host: str) -> None:
        self.log_dir = log_dir
        self.folder = log_dir / quoted(job)
        """The directory with all files of the job."""
        self._job = job
        self.host = host
        self._lock: int | None = None
        """The descriptor of the note of the current round, which is locked."""

    def parts(self, logged: LoggedRound) -> tuple[str, ...]:
        """Return the path of a round's directory, below the log directory."""
        return LogPaths(self._job, logged.run, logged.round).folder(Path()).parts

    def scan(self) -> list[LoggedRound]:
        """Return all rounds with notes of this host's nodes."""
        found: list[LoggedRound] = []
        with suppress(OSError), open_folder(self.log_dir, quoted(self._job)) as job:
            for run in _list(job):
                with suppress(OSError), open_folder(job, run) as rounds:
                    for name in filter(_ROUND.fullmatch, _list(rounds)):
                        with suppress(OSError), open_folder(rounds, name) as folder:
                            found += self._read_notes(folder, (quoted(self._job), run, name))
                        if len(found) > ROUNDS_MAX:
                            return found
        return found

    def _read_notes(self, folder: int, parts: tuple[str, ...]) -> Iterator[LoggedRound]:
        """Yield the notes of this host's nodes in a round's directory; `parts` is its path, as `parts` returns it."""
        known: dict[str, LoggedRound] = {}
        """The notes by the names of their files."""
        empty: dict[str, float] = {}
        """When each empty note of an ended process was last changed."""
        has_live_empty = False
        for name in filter(_NOTE.fullmatch, _list(folder)):
            with suppress(OSError, ValueError, RecursionError, SchemaError):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                with os.fdopen(fd, "rb") as file:
                    text, is_locked = file.read(NOTE_BYTES_MAX), _is_locked(fd)
                    found = os.fstat(fd)
                    if not text and stat.S_ISREG(found.st_mode):
                        has_live_empty |= is_locked
                        empty |= {} if is_locked else {name: found.st_mtime}
                logged = check(json.loads(text), LoggedRound, "note")
                known[name] = replace(logged, failed=logged.failed and not is_locked)  # see `begin`
        claimed = {rank for logged in known.values() for rank in logged.ranks}
        if has_live_empty:  # any rank that is not claimed may be one whose files are being written
            empty.clear()
        for name, begun_at in sorted(empty.items()):
            with suppress(OSError, ValueError, SchemaError):
                known[name] = self._reconstruct(folder, name, parts, begun_at, claimed)
                claimed.update(known[name].ranks)
        for name, logged in known.items():
            own = (logged.host, logged.job) == (self.host, self._job)
            if own and self.parts(logged) == parts and name == _note_name(logged):
                yield logged

    def _reconstruct(
        self, folder: int, name: str, parts: tuple[str, ...], begun_at: float, claimed: Collection[int]
    ) -> LoggedRound:
        """Return the probable content of a note that is empty because the disk was full, and whose process has ended.

        The note counts as this host's. Its workers are the first ones that no other note has `claimed`. Raises
        `OSError`, `ValueError` and `SchemaError`.
        """
        ranks = {int(rank) for rank in _list(folder) if _RANK.fullmatch(rank)}.difference(claimed)
        first = min(ranks, default=0)
        values = {
            "host": self.host,
            "job": self._job,
            "node": unquote(_NOTE.sub(r"\1", name), errors="strict"),
            "run": unquote(parts[1], errors="strict"),
            "round": int(parts[2].removeprefix("round_")),
            "first_rank": first,
            "workers": sum(1 for _ in takewhile(ranks.__contains__, count(first))),
            "begun_at": begun_at,
            "failed": False,
        }
        return check(values, LoggedRound, "note")

    def begin(self, logged: LoggedRound) -> None:
        """Write the note of a new round, and keep it locked from now on. Raises `OSError`.

        The note says that the round has failed, until `write` says how it ended: this process may be killed before. It
        is locked before it has its name, so that no other process takes the empty note for one of an ended process.
        """
        self.release()
        self.log_dir.joinpath(*self.parts(logged)).mkdir(parents=True, exist_ok=True)
        name = _note_name(logged)
        with open_folder(self.log_dir, *self.parts(logged)) as folder:
            self._lock = _open_note(folder, f"{name}.new", os.O_CREAT)
            with suppress(OSError):  # a file system without locks: nothing will be deleted there
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(f"{name}.new", name, src_dir_fd=folder, dst_dir_fd=folder)
        _write(self._lock, replace(logged, failed=True))

    def write(self, logged: LoggedRound, *, create: bool) -> None:
        """Replace the note of a round. Raises `OSError`.

        With `create`, at the end of the round, a missing note is made: `begin` may have failed. Without it, a round is
        judged as failed later, and gets no note if its files were deleted meanwhile.
        """
        with (
            suppress(FileNotFoundError),  # nothing was written in this round
            open_folder(self.log_dir, *self.parts(logged)) as folder,
        ):
            note = _open_note(folder, _note_name(logged), os.O_CREAT if create else 0)
            try:
                _write(note, logged)
            finally:
                os.close(note)

    def delete(self, logged: LoggedRound) -> bool:
        """Delete the files of one node in a round; return whether they are gone.

        Files that another process still writes are kept. Raises `OSError`.
        """
        try:
            with open_folder(self.log_dir, *self.parts(logged)) as folder:
                note = os.open(_note_name(logged), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _delete_files(folder, logged)
                finally:
                    os.close(note)
        except BlockingIOError:
            return False
        except FileNotFoundError:
            return True
        folder_path = self.log_dir.joinpath(*self.parts(logged))
        with suppress(OSError):  # the directory has files of other nodes
            folder_path.rmdir()
            folder_path.parent.rmdir()
        return True

    def release(self) -> None:
        """Unlock the note of the current round."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _open_note(folder: int, name: str, create: int) -> int:
    # Without O_NONBLOCK, opening a pipe that somebody has put there would wait for its reader.
    flags = os.O_WRONLY | create | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(name, flags, 0o666, dir_fd=folder)


def _write(note: int, logged: LoggedRound) -> None:
    """Write a note from its start. Raises `OSError`."""
    text = f"{json.dumps(asdict(logged))}\n".encode()
    os.truncate(note, os.pwrite(note, text, 0))


def _is_locked(note: int) -> bool:
    """Whether a process has locked a note, so that its round is live."""
    try:
        fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _list(folder: int) -> list[str]:
    return os.listdir(folder)


def _note_name(logged: LoggedRound) -> str:
    return f".nodeclient-{quoted(logged.node)}.json"


def _delete_files(folder: int, logged: LoggedRound) -> None:
    """Delete the files of a node's workers, and its note.

    The files of `--duplicate-stdout-filters` and the like, which nodes share, are deleted with the last note.
    """
    for rank in map(str, logged.ranks):
        with suppress(FileNotFoundError, NotADirectoryError):
            with open_folder(folder, rank) as workers:
                _delete(workers, _LOGS)
            with suppress(OSError):  # the directory has a file that is not ours
                os.rmdir(rank, dir_fd=folder)
    os.unlink(_note_name(logged), dir_fd=folder)
    if not any(map(_NOTE.fullmatch, _list(folder))):
        _delete(folder, _FILTERED)


def _delete(folder: int, names: re.Pattern[str]) -> None:
    for name in filter(names.fullmatch, _list(folder)):
        os.unlink(name, dir_fd=folder)
