"""The store of the leading coordinator among several: records are in etcd, with a replica in a local database.

The replica lets the same SQL as in a state directory read records, and decide which old ones to delete. It prepares
each commit, one transaction of etcd makes that durable, and then the replica commits it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Self

from coordinatord.runtime.logs import fields
from coordinatord.runtime.tasks import Tasks
from coordinatord.store.database import Database
from coordinatord.store.database_store import Store
from coordinatord.store.etcd.commit_log import Merger
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import History
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.etcd.replica import Replica
from coordinatord.store.interface import Entry, LeadershipLostError, NothingStoredError, StoreError
from coordinatord.store.migrations import STEPS, Steps

log = logging.getLogger(__name__)

COMPACT_EVERY_S = 300.0
"""How often etcd is told to drop old revisions, which it would keep for ever. The dropped ones are at least this old.
Kubernetes uses the same number."""


class EtcdStore(Store):
    """The records of one namespace, for the coordinator that leads there."""

    def __init__(self, gateway: Gateway, candidate: Candidate, history: History, replica: Replica) -> None:
        """Write both `history` and its `replica` while `candidate` leads. Raises `StoreError`."""
        super().__init__(str(gateway.location), replica.database, Database.open_reader(replica.path))
        self._gateway = gateway
        self._candidate = candidate
        self._history = history
        candidate.check_commits = history.check_commits
        self._replica = replica
        self._compacted_at = asyncio.get_running_loop().time()
        self._old_revision = 0
        """The revision at `_compacted_at`, up to which etcd is compacted next; 0 at the start."""
        self._tasks = Tasks()
        self._merging: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, gateway: Gateway, keys: Keys, candidate: Candidate, folder: Path | None = None, steps: Steps = STEPS
    ) -> Self:
        """Read the history as the leader, and migrate it; the replica is in this folder.

        Raises `LeadershipLostError` and `StoreError`.
        """
        history = History(gateway, keys, candidate.election.fence, steps)
        try:
            stored = await history.read()
        except NothingStoredError:
            await history.begin()
            stored = await history.read()
        await history.sweep()
        about = stored.about
        replica = await asyncio.to_thread(Replica, stored.rows, about.identity, about.version, folder, steps)
        try:
            if about.version != len(steps):
                await history.replace(replica.database.rows(), about.identity)
            candidate.check_may_act()  # this host may have slept meanwhile
            return cls(gateway, candidate, history, replica)
        except BaseException:
            replica.close()
            raise

    async def append(self, entries: Sequence[Entry]) -> None:
        """Make records durable: see `Store`. Raises `StoreError`, and `LeadershipLostError`."""
        await self._end_of_merger()
        try:
            added, dropped = await self._in_writer_thread(partial(self._database.append_uncommitted, entries))
        except StoreError as error:
            if not self._candidate.roster.standbys:
                raise
            # Another coordinator has a disk of its own, which may have room.
            raise LeadershipLostError(f"{error}; another coordinator may lead: this one stands by") from error
        try:
            await self._history.commit(added, dropped)
        except BaseException:
            # If it is in etcd nevertheless, a retry makes the same rows, and is recognized there.
            await self._in_writer_thread(partial(self._database.finish, commit=False))
            raise
        try:
            await self._in_writer_thread(partial(self._database.finish, commit=True))
        except StoreError as error:
            # The commit is durable, and a retry would commit it twice.
            raise LeadershipLostError(f"it is in etcd, but not in the replica: {error}; this one stands by") from error
        self._tidy()

    def _tidy(self) -> None:
        """Start to merge commits and to compact etcd if due, without waiting: nodes wait for what was committed."""
        merger = self._history.log.next_merger()
        if merger is not None:
            self._merging = self._tasks.spawn(self._merge(merger), name="merge commits")
        now = asyncio.get_running_loop().time()
        if now >= self._compacted_at + COMPACT_EVERY_S and (self._compacting is None or self._compacting.done()):
            revision, self._old_revision = self._old_revision, self._history.revision
            self._compacted_at = now
            if revision:
                self._compacting = self._tasks.spawn(self._compact(revision), name="compact etcd")

    async def _end_of_merger(self) -> None:
        """Wait for a merger in progress, which a commit must not overtake. Raises `LeadershipLostError`."""
        if self._merging is not None:
            merging, self._merging = self._merging, None
            await merging

    async def _merge(self, merger: Merger) -> None:
        """Merge values with many dropped rows; a later commit tries again. Raises `LeadershipLostError`."""
        try:
            rows = await self._in_writer_thread(partial(self._database.rows, merger.rows))
            await self._history.merge(merger, rows)
        except StoreError as error:
            log.debug("etcd is not tidied now: %s", error, extra=fields("etcd_untidy"))

    async def _compact(self, revision: int) -> None:
        """Compact etcd up to a revision; a later commit retries a failure."""
        try:
            await self._gateway.call("/v3/kv/compaction", {"revision": str(revision)})
        except StoreError as error:
            log.debug("etcd does not forget now: %s", error, extra=fields("etcd_untidy"))

    async def close(self) -> None:
        """Remove the replica after all calls, and let another coordinator lead."""
        try:
            await self._tasks.cancel()
            await super().close()
            await asyncio.to_thread(self._replica.close)
        finally:
            await self._candidate.resign()
