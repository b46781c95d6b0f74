"""`coordinatord store copy FROM TO`: copies all records from a state directory to etcd, or back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path

from coordinatord.config.store_flags import LEASE_S, CopyConfig
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import counted
from coordinatord.runtime.tasks import Tasks
from coordinatord.security.identity import KEY
from coordinatord.security.setup import FOLDER
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE, StateDirectory
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import History, StoredHistory
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.etcd.location import EtcdLocation
from coordinatord.store.etcd.replica import Replica
from coordinatord.store.etcd.roster import Coordinatord, read_coordinators
from coordinatord.store.interface import NothingStoredError, StoreError
from coordinatord.store.row_codec import Row


def copy(config: CopyConfig) -> int:
    """Copy, and print a summary; return the exit code. Raises `StoreError`.

    No coordinator may lead at either place until all is copied, because the copy would lack its decisions.
    """
    number = asyncio.run(_copy(config.source, config.destination))
    sys.stdout.write(f"{counted(number, 'record')} copied from {config.source} to {config.destination}\n")
    return ExitCode.OK


async def _copy(source: Path | EtcdLocation, destination: Path | EtcdLocation) -> int:
    async with _read(source) as (rows, identity):
        if isinstance(destination, EtcdLocation):
            await _write_namespace(destination, rows, identity)
        else:
            # In a thread, so that the lease of a source in etcd is renewed meanwhile.
            await asyncio.to_thread(_write_directory, destination, rows, identity)
        return len(rows)


@asynccontextmanager
async def _read(source: Path | EtcdLocation) -> AsyncIterator[tuple[list[Row], str]]:
    """Yield the rows of a store and its identity, and lock out coordinators within the context. Raises `StoreError`."""
    if isinstance(source, EtcdLocation):
        async with _lead(source) as (history, candidate):
            yield await asyncio.to_thread(_rows_of, await history.read())
            if not candidate.may_act():
                raise StoreError(
                    f"{source}: its lease ran out before all was copied, so another coordinator may have led: remove"
                    " the copy, and make it again"
                )
    else:
        if not (source / DATABASE).exists():
            raise NothingStoredError(f"state directory {source}: no coordinatord has kept state in it")
        with closing(StateDirectory.claim(source)) as directory:
            database = Database.copy_of(directory.database)
            yield database.rows(), database.identity


def _write_directory(folder: Path, rows: list[Row], identity: str) -> None:
    with (
        closing(StateDirectory.claim(folder)) as directory,
        closing(Database.open(directory.database)) as database,
    ):
        directory.chown_database()
        if database.count():
            found = counted(database.count(), "record")
            raise StoreError(f"state directory {folder}: it holds {found} already: name an empty directory")
        database.fill(rows, identity)
    if not (folder / FOLDER / KEY).exists():
        sys.stderr.write(
            f"coordinatord: {folder} has no key: copy the folder {FOLDER} of a coordinator's state directory into it."
            " Otherwise coordinatord makes a new key there, and the present tokens do not fit it\n"
        )


def _rows_of(found: StoredHistory) -> tuple[list[Row], str]:
    """Return the rows of a namespace, migrated to the present version, and the identity of the store."""
    with closing(Replica(found.rows, found.about.identity, found.about.version)) as replica:
        return replica.database.rows(), found.about.identity


async def _write_namespace(location: EtcdLocation, rows: list[Row], identity: str) -> None:
    async with _lead(location) as (history, _):
        try:
            found = len((await history.read()).rows)
        except NothingStoredError:
            found = 0
        if found:
            raise StoreError(f"{location} holds {counted(found, 'record')} already: name a prefix that holds none")
        await history.replace(rows, identity)


@asynccontextmanager
async def _lead(location: EtcdLocation) -> AsyncIterator[tuple[History, Candidate]]:
    """Lead in a namespace within the context, so that no coordinator writes there. Raises `StoreError`."""
    tasks, gateway, keys = Tasks(), Gateway(location), Keys(location.prefix)
    # A coordinator that starts meanwhile shows this as the leader.
    own = Coordinatord("store copy", "store copy", secure=False, since=datetime.now(UTC).timestamp())
    candidate = Candidate(gateway, keys, own, LEASE_S)
    try:
        await candidate.win_at_once()
        tasks.spawn(candidate.lead(), name="lease")
        standbys = (await read_coordinators(gateway, keys)).standbys
        if standbys:  # one of them would lead, and write, as soon as this resigns
            raise StoreError(
                f"{keys.prefix}/: a coordinatord stands by ({standbys[0].endpoint}): end all that share it first"
            )
        yield History(gateway, keys, candidate.election.fence), candidate
    finally:
        await tasks.cancel()
        await candidate.resign()
        await gateway.close()
