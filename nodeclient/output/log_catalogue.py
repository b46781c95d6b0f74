"""The list of rounds with log files of this host's nodes, kept beside the files, and the deletion of old ones.

Each round's directory has a note for each node that wrote there: whose directories they are, also after a restart, and
also where several hosts share the log directory. The node whose round it is holds a lock on its note, so that no other
process deletes what is being written. All of it waits for a disk, and belongs into a thread.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from coordinatord.protocol.schema import SchemaError, check_for
from nodeclient.core.kept_rounds import KeptRound
from nodeclient.output.log_paths import LogPaths, quoted

ROUNDS_MAX = 10_000
"""The limit of rounds that are found on the disk: to look at more would take minutes on a network file system."""

NOTE_BYTES_MAX = 4_096
"""The limit of one note: a few names and numbers."""

_NOTE = re.compile(r"\.nodeclient-.*\.json")
_ROUND = re.compile(r"round_\d{1,10}", re.ASCII)
_OURS = re.compile(r"(?:stdout|stderr)\.log(?:\.\d{1,6})?", re.ASCII)
_FILTERED = re.compile(r"filtered_(?:stdout|stderr)\.log(?:\.\d{1,6})?", re.ASCII)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_check = check_for(KeptRound)


@contextmanager
def opened(base: Path, *parts: str) -> Iterator[int]:
    """Yield the descriptor of a directory below `base`, on a way without symbolic links. Raises `OSError`."""
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


class LogCatalogue:
    """What the nodes of one host have written of one job below one log directory."""

    def __init__(self, log_dir: Path, job: str, host: str) -> None:
        self._log_dir = log_dir
        self._job = job
        self._host = host
        self._lock: int | None = None
        """The note of the present round, which is locked."""

    def parts(self, kept: KeptRound) -> tuple[str, ...]:
        """Return the way to the directory of a round, below the log directory."""
        return LogPaths(self._job, kept.run, kept.round).folder(Path()).parts

    def scan(self) -> list[KeptRound]:
        """Return the rounds that nodes of this host have written notes of, whenever that was."""
        found: list[KeptRound] = []
        with suppress(OSError), opened(self._log_dir, quoted(self._job)) as job:
            for run in _names(job):
                with suppress(OSError), opened_in(job, run) as rounds:
                    for name in filter(_ROUND.fullmatch, _names(rounds)):
                        with suppress(OSError), opened_in(rounds, name) as folder:
                            found += self._noted(folder, (quoted(self._job), run, name))
                        if len(found) > ROUNDS_MAX:
                            return found
        return found

    def _noted(self, folder: int, parts: tuple[str, ...]) -> Iterator[KeptRound]:
        for name in filter(_NOTE.fullmatch, _names(folder)):
            with suppress(OSError, ValueError, RecursionError, SchemaError):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                with os.fdopen(fd, "rb") as file:
                    kept = _check(json.loads(file.read(NOTE_BYTES_MAX)), "note")
                    if kept.failed and _is_locked(file.fileno()):
                        kept = replace(kept, failed=False)
                own = (kept.host, kept.job) == (self._host, self._job)
                if own and self.parts(kept) == parts and name == _note_of(kept):
                    yield kept

    def note(self, kept: KeptRound) -> None:
        """Write the note of the round that begins, and keep it locked from now on. Raises `OSError`.

        The note says that the round has failed, until `end` says how it ended: this process may be killed before that.
        """
        self.release()
        folder = self._log_dir.joinpath(*self.parts(kept))
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._write(replace(kept, failed=True), os.O_CREAT)
        with suppress(OSError):  # a file system without locks: nothing will be deleted there
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def end(self, kept: KeptRound) -> None:
        """Write the note of a round that is over; there may be none, if the disk was full. Raises `OSError`."""
        with suppress(FileNotFoundError):  # nothing was written in this round
            os.close(self._write(kept, os.O_CREAT))

    def amend(self, kept: KeptRound) -> None:
        """Write the note of a round anew, unless it was deleted. Raises `OSError`."""
        with suppress(FileNotFoundError):
            os.close(self._write(kept, 0))

    def _write(self, kept: KeptRound, create: int) -> int:
        # A pipe that somebody has put there has no reader, and is no file to wait for.
        flags = os.O_WRONLY | create | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with opened(self._log_dir, *self.parts(kept)) as folder:
            fd = os.open(_note_of(kept), flags, 0o666, dir_fd=folder)
        try:
            text = f"{json.dumps(asdict(kept))}\n".encode()
            os.truncate(fd, os.write(fd, text))
        except OSError:
            os.close(fd)
            raise
        return fd

    def delete(self, kept: KeptRound) -> bool:
        """Delete what one node has written of a round, and nothing else; return whether it is gone.

        It is left alone if another process is writing it. Raises `OSError`.
        """
        try:
            with opened(self._log_dir, *self.parts(kept)) as folder:
                note = os.open(_note_of(kept), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _empty(folder, kept)
                finally:
                    os.close(note)
        except BlockingIOError:
            return False
        except FileNotFoundError:
            return True
        folder_path = self._log_dir.joinpath(*self.parts(kept))
        with suppress(OSError):  # it has files of others
            folder_path.rmdir()
            folder_path.parent.rmdir()
        return True

    def release(self) -> None:
        """Let go of the note of the present round."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def opened_in(folder: int, name: str) -> Iterator[int]:
    """Yield the descriptor of a directory within another one; a symbolic link is none. Raises `OSError`."""
    fd = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_locked(note: int) -> bool:
    """Whether a process holds the lock of a note, so that its round goes on; it does not where nothing is locked."""
    try:
        fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


def _note_of(kept: KeptRound) -> str:
    return f".nodeclient-{quoted(kept.node)}.json"


def _empty(folder: int, kept: KeptRound) -> None:
    """Delete the files of a node's workers, its note, and after the last node's note the filtered lines."""
    for rank in map(str, kept.ranks):
        with suppress(FileNotFoundError, NotADirectoryError):
            with opened_in(folder, rank) as workers:
                _delete(workers, _OURS)
            with suppress(OSError):  # somebody else has put something there
                os.rmdir(rank, dir_fd=folder)
    os.unlink(_note_of(kept), dir_fd=folder)
    if not any(map(_NOTE.fullmatch, _names(folder))):
        _delete(folder, _FILTERED)


def _delete(folder: int, names: re.Pattern[str]) -> None:
    for name in filter(names.fullmatch, _names(folder)):
        os.unlink(name, dir_fd=folder)
