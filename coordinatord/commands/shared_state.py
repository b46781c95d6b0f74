"""What a namespace in etcd holds, read without leading there: the history, and who leads and stands by."""

from __future__ import annotations

import asyncio

from coordinatord.commands.json_output import StoredCoordinator
from coordinatord.protocol.frozen_class import frozen
from coordinatord.store.database import Database
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import History, StoredHistory
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.leadership import Coordinatord, Members, members
from coordinatord.store.etcd.place import EtcdPlace
from coordinatord.store.interface import UnreadableStoreError
from coordinatord.store.migrations import STEPS


@frozen
class SharedState:
    """All of it, as it was at one moment."""

    database: Database
    size: int
    """How many bytes the history has in etcd."""
    leader: StoredCoordinator | None
    standbys: tuple[StoredCoordinator, ...]
    lease_s: float | None
    """How long the leader's lease lasts yet, in seconds."""


def look_into(place: EtcdPlace) -> SharedState:
    """Read a namespace. Raises `StoreError`."""
    found, there = asyncio.run(_read(place))
    if found.about.version != len(STEPS):
        raise UnreadableStoreError(
            f"{place} has records of version {found.about.version}, and this release reads {len(STEPS)}: the"
            " coordinator that leads next brings them up to date"
        )
    database = Database.in_memory()
    database.fill(found.rows, found.about.identity)
    leader = None if there.leader is None else _stored(there.leader)
    return SharedState(database, found.size, leader, tuple(map(_stored, there.standbys)), there.lease_s)


async def _read(place: EtcdPlace) -> tuple[StoredHistory, Members]:
    gateway, keys = Gateway(place), Keys(place.prefix)
    try:
        return await History(gateway, keys).read(), await members(gateway, keys)
    finally:
        await gateway.close()


def _stored(one: Coordinatord) -> StoredCoordinator:
    return StoredCoordinator(host=one.name, endpoint=one.endpoint, since=one.since)
