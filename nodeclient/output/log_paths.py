"""The directories of a round's files: that of its log files, and a private one, for error files and sockets.

The name of a job comes from the user, and the id of a run from the coordinator. Both become names of directories, and
must lead nowhere else.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from msgspec import Struct

NAME_BYTES_MAX = 200
"""The limit of a directory's name in bytes; file systems allow 255 (NAME_MAX in limits.h)."""

_DIGEST_LETTERS = 12
"""The letters of a hash that take the place of the rest of a long name: 48 bits, so that two names never share them."""

_UNSAFE = re.compile(r"[/%\x00-\x1f\x7f]|^\.")
"""Characters in a name that could lead out of the directory, hide an entry, or look like a quoted character."""


class LogPaths(Struct, frozen=True):
    """A round, as the key of a directory."""

    job: str
    run: str
    round: int

    def folder(self, log_dir: Path) -> Path:
        """Return the directory of the round."""
        return log_dir / quoted(self.job) / quoted(self.run) / f"round_{self.round}"


def quoted(name: str) -> str:
    """Return the name of a directory for any name; different names have different directories."""
    safe = _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name) or "%"
    if len(safe.encode()) <= NAME_BYTES_MAX:
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LETTERS]
    return f"{safe.encode()[: NAME_BYTES_MAX - 1 - _DIGEST_LETTERS].decode(errors='ignore')}-{digest}"


class PrivateFolder:
    """A temporary directory that only this user can read. Its name is known from the start; `empty` makes it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir(), f"nodeclient-{secrets.token_hex(8)}")
        self._made: tuple[int, int, int] | None = None
        """The device, the inode number and the owner of the directory. The owner may not be this process's user: some
        network file systems take root for nobody (`root_squash` in exports(5))."""

    def empty(self) -> None:
        """Empty the directory, or make it: it is new, or a cleaner of /tmp has removed it or its parent.

        Raises `OSError`.
        """
        try:
            self.path.mkdir(0o700, parents=True)
        except FileExistsError:
            self._check()
            for entry in self.path.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        else:
            self.path.chmod(0o700)  # a umask may have removed permissions of the user
            self._made = _identity(self.path.lstat())

    def remove(self) -> None:
        """Remove the directory with its content."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _check(self) -> None:
        """Raise `PermissionError` if another user has replaced it, such as by a link to other files."""
        found = self.path.lstat()
        # Other bits may be set: a directory inherits the setgid bit.
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if not private or _identity(found) != self._made:
            raise PermissionError(errno.EPERM, f"{self.path} is not the private directory that was made there")


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_dev, found.st_ino, found.st_uid
