"""The leader's copy of the history, in a database like that of a daemon with a state directory.

So the same code and SQL decide what is deleted, read and counted. The file ends with the process, since etcd has the
history.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from coordinatord.store.database import Database
from coordinatord.store.error_texts import explained
from coordinatord.store.interface import Entry
from coordinatord.store.migrations import STEPS, Steps
from coordinatord.store.row_codec import Row

FOLDER = "replica"
"""The name of the folder in a state directory."""

REPLICA = "replica.db"
"""The file in it."""


class Change(Struct, frozen=True):
    """The rows that a commit adds, and those that it drops."""

    added: tuple[Row, ...]
    dropped: tuple[int, ...]
    """The numbers of the earlier rows that it drops."""


class Replica:
    """One history, in a file of its own. Call its methods in one thread at a time."""

    def __init__(
        self, rows: Iterable[Row], identity: str, version: int, folder: Path | None = None, steps: Steps = STEPS
    ) -> None:
        """Fill a new file with the rows of a version, and migrate them. Raises `StoreError`.

        Only this process uses `folder`, and replaces the file of an earlier one; None for a temporary folder.
        """
        with explained(folder or tempfile.gettempdir()):
            if folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="coordinatord-replica-"))
            else:
                self._folder = folder / FOLDER
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder.mkdir(mode=0o700)
        self.path = self._folder / REPLICA
        try:
            older = Database.open(self.path, steps[:version])
            older.fill(rows, identity)
            older.close()
            self.database = Database.open(self.path, steps)
            self.database.track_changes()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def begin(self, entries: Iterable[Entry]) -> Change:
        """Append, and leave the transaction open for `Database.end`; return the changes. Raises `StoreError`."""
        added, dropped = self.database.begin(entries)
        return Change(tuple(self.database.rows(added)), tuple(dropped))

    def close(self) -> None:
        """Remove the file."""
        try:
            self.database.close()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
