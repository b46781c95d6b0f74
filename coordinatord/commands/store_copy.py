"""`coordinatord store copy FROM TO`: copies a history from a state directory to etcd, or the other way."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

from coordinatord.commands.offline_replay import counted
from coordinatord.config.store_flags import LEASE_S, CopyConfig
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime.tasks import Tasks
from coordinatord.security.identity import KEY
from coordinatord.security.setup import FOLDER
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE, StateDirectory
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import History
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.etcd.place import EtcdPlace
from coordinatord.store.etcd.replica import Replica
from coordinatord.store.etcd.roster import Coordinatord
from coordinatord.store.interface import NothingStoredError, StoreError
from coordinatord.store.row_codec import Row


def copy(config: CopyConfig) -> int:
    """Copy, and print what was done; return the exit code. Raises `StoreError`.

    The source stays as it is. No coordinator may lead at either: what it decides meanwhile would be missing.
    """
    number = asyncio.run(_copy(config.source, config.destination))
    sys.stdout.write(f"{counted(number, 'record')} copied from {config.source} to {config.destination}\n")
    return ExitCode.OK


async def _copy(source: Path | EtcdPlace, destination: Path | EtcdPlace) -> int:
    rows, identity = await _read_namespace(source) if isinstance(source, EtcdPlace) else _read_directory(source)
    if isinstance(destination, EtcdPlace):
        await _write_namespace(destination, rows, identity)
    else:
        _write_directory(destination, rows, identity)
    return len(rows)


def _read_directory(folder: Path) -> tuple[list[Row], str]:
    """Return the rows of a state directory that no coordinator uses, and the identity of its history."""
    if not (folder / DATABASE).exists():
        raise NothingStoredError(f"state directory {folder}: no coordinatord has kept state in it")
    directory = StateDirectory.claim(folder)
    try:
        database = Database.copy_of(directory.database)
        return database.rows(), database.identity
    finally:
        directory.release()


def _write_directory(folder: Path, rows: list[Row], identity: str) -> None:
    directory = StateDirectory.claim(folder)
    try:
        database = Database.open(directory.database)
        try:
            if database.count():
                held = counted(database.count(), "record")
                raise StoreError(f"state directory {folder}: it holds {held} already: name an empty directory")
            database.fill(rows, identity)
        finally:
            database.close()
            directory.hand_over_database()
    finally:
        directory.release()
    if not (folder / FOLDER / KEY).exists():
        sys.stderr.write(
            f"coordinatord: {folder} has no key: copy the folder {FOLDER} of a coordinator's state directory into it."
            " Otherwise coordinatord makes a new key there, and the present tokens do not fit it\n"
        )


async def _read_namespace(place: EtcdPlace) -> tuple[list[Row], str]:
    """Return the rows of a namespace, brought to the present version, and the identity of its history."""
    async with _LeadForCopy(place) as history:
        found = await history.read()
        replica = Replica(found.rows, found.about.identity, found.about.version)
        try:
            return replica.rows(), found.about.identity
        finally:
            replica.close()


async def _write_namespace(place: EtcdPlace, rows: list[Row], identity: str) -> None:
    async with _LeadForCopy(place) as history:
        try:
            held = len((await history.read()).rows)
        except NothingStoredError:
            held = 0
        if held:
            raise StoreError(f"{place} holds {counted(held, 'record')} already: name a prefix that holds none")
        await history.replace(rows, identity)


class _LeadForCopy:
    """Leads at a namespace for as long as the context lasts, so that nobody else writes there."""

    def __init__(self, place: EtcdPlace) -> None:
        self._place = place
        self._keys = Keys(place.prefix)

    async def __aenter__(self) -> History:
        self._tasks, self._gateway = Tasks(), Gateway(self._place)
        own = Coordinatord("store copy", "store copy", secure=False, since=datetime.now(UTC).timestamp())
        self._candidate = Candidate(self._gateway, self._keys, own, LEASE_S)
        try:
            await self._candidate.win_at_once()
        except BaseException:
            await self._gateway.close()
            raise
        self._tasks.spawn(self._candidate.keep(), name="lease")
        return History(self._gateway, self._keys, self._candidate.fence)

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.cancel()
        await self._candidate.resign()
        await self._gateway.close()
