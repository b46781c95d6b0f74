"""The leader's copy of the history in etcd: a database like that in a state directory.

So the same SQL reads records, and decides which ones to delete. The file is temporary, since etcd has the history.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from coordinatord.store.database import Database
from coordinatord.store.error_texts import store_errors
from coordinatord.store.migrations import STEPS, Steps
from coordinatord.store.row_codec import Row

FOLDER = "replica"
"""The folder in the state directory."""

REPLICA = "replica.db"
"""The file in this folder."""


class Replica:
    """A copy of one history. Call its methods in one thread at a time."""

    def __init__(
        self, rows: Iterable[Row], identity: str, version: int, folder: Path | None = None, steps: Steps = STEPS
    ) -> None:
        """Fill a new file with the rows of a version, and migrate them. Raises `StoreError`.

        `identity` is the word by which clients know this history (`About`), whichever coordinator leads. `folder` is a
        state directory that only this process uses; None for a temporary folder.
        """
        with store_errors(folder or tempfile.gettempdir()):
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
            self.database.track_changes()  # each commit to etcd has the rows that were added and deleted here
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def close(self) -> None:
        """Remove the file."""
        try:
            self.database.close()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
