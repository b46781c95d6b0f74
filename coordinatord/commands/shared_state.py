"""Reads the records and the coordinators of a namespace in etcd, for `coordinatord state`."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from coordinatord.protocol.http.api import CoordinatorStatus
from coordinatord.store.database import Database
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import History, StoredHistory
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.location import EtcdLocation
from coordinatord.store.etcd.roster import Coordinators, read_coordinators
from coordinatord.store.interface import UnreadableStoreError
from coordinatord.store.migrations import STEPS


class SharedState(Struct, frozen=True):
    """The content of a namespace."""

    database: Database
    size: int
    """The bytes of all commits."""
    leader: CoordinatorStatus | None
    standbys: tuple[CoordinatorStatus, ...]
    lease_s: float | None
    """The remaining seconds of the leader's lease; None if no coordinator leads."""


def read_shared_state(location: EtcdLocation) -> SharedState:
    """Read a namespace. Raises `StoreError`."""
    stored, coordinators = asyncio.run(_read(location))
    if stored.about.version != len(STEPS):
        raise UnreadableStoreError(
            f"{location} has records of version {stored.about.version}, and this release reads {len(STEPS)}: the"
            " coordinator that leads next brings them up to date"
        )
    database = Database.in_memory()
    database.fill(stored.rows, stored.about.identity)
    leader = None if coordinators.leader is None else coordinators.leader.status
    standbys = tuple(standby.status for standby in coordinators.standbys)
    return SharedState(database, stored.size, leader, standbys, coordinators.lease_s)


async def _read(location: EtcdLocation) -> tuple[StoredHistory, Coordinators]:
    gateway, keys = Gateway(location), Keys(location.prefix)
    try:
        return await History(gateway, keys).read(), await read_coordinators(gateway, keys)
    finally:
        await gateway.close()
