"""Reads the records and the coordinators of a namespace in etcd, for `coordinatord state`."""

from __future__ import annotations

import asyncio

from coordinatord.store.database import Database
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import History, StoredHistory
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.location import EtcdLocation
from coordinatord.store.etcd.roster import Coordinators, read_coordinators
from coordinatord.store.interface import UnreadableStoreError
from coordinatord.store.migrations import STEPS


def read_shared_state(location: EtcdLocation) -> tuple[Database, int, Coordinators]:
    """Return the records of a namespace, the bytes of all commits, and the coordinators. Raises `StoreError`."""
    stored, coordinators = asyncio.run(_read(location))
    if stored.about.version != len(STEPS):
        raise UnreadableStoreError(
            f"{location} has records of version {stored.about.version}, and this release reads {len(STEPS)}: the"
            " coordinator that leads next brings them up to date"
        )
    database = Database.in_memory()
    database.fill(stored.rows, stored.about.identity)
    return database, stored.size, coordinators


async def _read(location: EtcdLocation) -> tuple[StoredHistory, Coordinators]:
    gateway, keys = Gateway(location), Keys(location.prefix)
    try:
        return await History(gateway, keys).read(), await read_coordinators(gateway, keys)
    finally:
        await gateway.close()
