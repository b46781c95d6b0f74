"""What a namespace in etcd holds, read without leading there: the history, and who leads and stands by."""

from __future__ import annotations

import asyncio

from coordinatord.protocol.coordinator_answers import CoordinatorStatus
from coordinatord.protocol.frozen_class import frozen
from coordinatord.store.database import Database
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import History, StoredHistory
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.place import EtcdPlace
from coordinatord.store.etcd.roster import Members, members
from coordinatord.store.interface import UnreadableStoreError
from coordinatord.store.migrations import STEPS


@frozen
class SharedState:
    """All of it, as it was at one moment."""

    database: Database
    size: int
    """How many bytes the history has in etcd."""
    leader: CoordinatorStatus | None
    standbys: tuple[CoordinatorStatus, ...]
    lease_s: float | None
    """How long the leader's lease lasts yet, in seconds."""


def look_into(place: EtcdPlace) -> SharedState:
    """Read a namespace. Raises `StoreError`."""
    stored, there = asyncio.run(_read(place))
    if stored.about.version != len(STEPS):
        raise UnreadableStoreError(
            f"{place} has records of version {stored.about.version}, and this release reads {len(STEPS)}: the"
            " coordinator that leads next brings them up to date"
        )
    database = Database.in_memory()
    database.fill(stored.rows, stored.about.identity)
    leader = None if there.leader is None else there.leader.status
    return SharedState(
        database, stored.size, leader, tuple(standby.status for standby in there.standbys), there.lease_s
    )


async def _read(place: EtcdPlace) -> tuple[StoredHistory, Members]:
    gateway, keys = Gateway(place), Keys(place.prefix)
    try:
        return await History(gateway, keys).read(), await members(gateway, keys)
    finally:
        await gateway.close()
