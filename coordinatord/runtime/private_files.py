"""Reads and writes files with secrets, which only one user can read, and which are replaced atomically.

A directory may be a symbolic link. A file must not be one, unless a person has named it (`read_given`). If root writes
into the directory of another user, such as that of a service, the file belongs to the directory's owner, so that the
service can read it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode

PRIVATE_BYTES_MAX = 1024 * 1024
"""The size limit of a file: a thousand tokens with their names take half of it."""


class PrivateFileError(OperationalError):
    """A file with secrets cannot be used, because the system refuses it, or others could read it."""

    exit_code = ExitCode.IO_ERROR


@contextmanager
def _errors(path: Path, participle: str) -> Iterator[None]:
    """Raise `PrivateFileError` for an `OSError`; `participle`, such as `written`, says what failed."""
    try:
        yield
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be {participle}: {error.strerror}") from error


@contextmanager
def _opened_directory(path: Path, flags: int = 0) -> Iterator[int]:
    """Yield a descriptor of a directory. Raises `OSError`."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags)
    try:
        yield handle
    finally:
        os.close(handle)


def write_private(path: Path, text: str) -> None:
    """Write or replace a file that only this user can read. Raises `PrivateFileError`.

    A missing directory is made. The replacement is atomic, also in a crash, and durable on return.
    """
    make_private_directory(path.parent)
    with _errors(path, "written"):
        fresh = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - it is a descriptor
                file.write(text)
                file.flush()
                inherit_owner(handle, path.parent)
                os.fsync(handle)
            fresh.replace(path)
            flush_directory(path.parent)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise


def flush_directory(path: Path) -> None:
    """Make the names in a directory durable: until then a power failure may undo a rename. Raises `OSError`."""
    with _opened_directory(path) as handle:
        os.fsync(handle)


def remove_private(path: Path) -> None:
    """Remove a file, if it is there. Raises `PrivateFileError`."""
    with _errors(path, "removed"):
        if path.exists():  # a read-only file system refuses to remove even a file that is missing
            path.unlink(missing_ok=True)


def make_private_directory(path: Path) -> None:
    """Make a directory that only this user can use, and its parents, if missing. Raises `PrivateFileError`."""
    with _errors(path, "made"):
        for part in (*reversed(path.parents), path):
            if not part.is_dir():
                part.mkdir(mode=0o700, exist_ok=True)
                with _opened_directory(part, os.O_NOFOLLOW) as handle:
                    inherit_owner(handle, part.parent)


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Make a directory if missing, and lock it against other processes that call this. Raises `PrivateFileError`."""
    make_private_directory(path)
    with ExitStack() as stack:
        with _errors(path, "locked"):
            fcntl.flock(stack.enter_context(_opened_directory(path)), fcntl.LOCK_EX)
        yield


def read_private(path: Path) -> str | None:
    """Return the text of a file that only this user may read; None if it is missing. Raises `PrivateFileError`."""
    with _errors(path, "read"), suppress(FileNotFoundError), open(path, "rb", opener=_open_no_link) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise PrivateFileError(f"{path} is not a regular file")
        if found.st_uid not in _trusted(path.parent):
            raise PrivateFileError(f"{path} belongs to another user (uid {found.st_uid}), so it is not trusted")
        if found.st_mode & 0o077:
            raise PrivateFileError(f"others may read {path}: make it private with chmod 600, and replace the secret")
        return _text(path, file.read(PRIVATE_BYTES_MAX + 1))
    return None


def _open_no_link(path: str, flags: int) -> int:
    """Open a file, but no link. If there is a pipe instead, the open does not wait for its writer."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def read_given(path: Path) -> str:
    """Return the text of a file that a person has named, whatever its permissions. Raises `PrivateFileError`.

    It may be a link, and readable by a group, as secrets are in Kubernetes.
    """
    with _errors(path, "read"), path.open("rb") as file:
        return _text(path, file.read(PRIVATE_BYTES_MAX + 1))


def inherit_owner(handle: int, directory: Path) -> None:
    """Give a file to the owner of its directory, if this process runs as root. Raises `OSError`."""
    if os.geteuid() == 0:
        found = directory.stat()
        with suppress(PermissionError):  # a container's root may lack the right to do so
            os.fchown(handle, found.st_uid, found.st_gid)


def tokens_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of this user's tokens, one file for each coordinator. Raises `PrivateFileError`."""
    base = Path(environ.get("XDG_CONFIG_HOME") or ".")
    if not base.is_absolute():  # the XDG specification ignores relative paths
        try:
            base = Path("~/.config").expanduser()
        except RuntimeError as error:
            raise PrivateFileError("this user has no home directory") from error
    return base / "coordinatord" / "tokens"


def _trusted(directory: Path) -> set[int]:
    """Return the users that are trusted as owners of files in a directory."""
    own = os.geteuid()
    return {own, 0} if own else {0, directory.stat().st_uid}


def _text(path: Path, data: bytes) -> str:
    if len(data) > PRIVATE_BYTES_MAX:
        raise PrivateFileError(f"{path} is longer than {PRIVATE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PrivateFileError(f"{path} is not UTF-8 text") from error
