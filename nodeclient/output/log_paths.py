"""Where the files of a round are: the log directory, and a private one for error files where there is no other."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

NAME_BYTES_MAX = 200
"""Of a directory's name; file systems take 255 (NAME_MAX in limits.h)."""

_DIGEST_LETTERS = 12
_UNSAFE = re.compile(r"[/%\x00-\x1f\x7f]|^\.")
"""What could leave the directory, be hidden in it, or be taken for something that was quoted."""


@dataclass(frozen=True, slots=True)
class LogPaths:
    """Which round the output belongs to."""

    job: str
    run: str
    round: int

    def folder(self, log_dir: Path) -> Path:
        """Return the directory of the round."""
        return log_dir / quoted(self.job) / quoted(self.run) / f"round_{self.round}"


def quoted(name: str) -> str:
    """Make one name of a directory out of any name, different ones out of different names."""
    safe = _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name) or "%"
    if len(safe.encode()) <= NAME_BYTES_MAX:
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LETTERS]
    return f"{safe.encode()[: NAME_BYTES_MAX - 1 - _DIGEST_LETTERS].decode(errors='ignore')}-{digest}"


class PrivateFolder:
    """A directory that only this user can look into: its name is known from the start, it is made when it is needed."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir(), f"nodeclient-{secrets.token_hex(8)}")
        self._made: tuple[int, int, int] | None = None
        """What the system has for it: its device, its number and its owner. The owner is another one where root has a
        directory on a network file system that takes root for nobody (`root_squash` in exports(5))."""

    def empty(self) -> None:
        """Make it, also anew where something tidied up /tmp meanwhile, or remove what is in it. Raises `OSError`."""
        try:
            self.path.mkdir(0o700)
        except FileExistsError:
            self._check()
            for left in self.path.iterdir():
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)
                else:
                    left.unlink()
        else:
            self.path.chmod(0o700)  # a umask may have taken more
            self._made = _identity(self.path.lstat())

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _check(self) -> None:
        """Refuse what somebody else has put in its place, such as a link to files that are not to be touched."""
        found = self.path.lstat()
        # Other bits may be there: in a setgid directory that one is inherited.
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if not private or _identity(found) != self._made:
            raise PermissionError(errno.EPERM, f"{self.path} is not the private directory that was made there")


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_dev, found.st_ino, found.st_uid
