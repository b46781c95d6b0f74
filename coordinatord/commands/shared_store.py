"""Reads a store in etcd that coordinators share, for commands that show state, and ends the term of its leader."""

from __future__ import annotations

import asyncio
import sys

from coordinatord.config.store_flags import StepDownConfig
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.store.database import Database
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import History, StoredHistory
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.location import EtcdLocation
from coordinatord.store.etcd.roster import Coordinators, end_term, read_coordinators
from coordinatord.store.interface import UnreadableStoreError
from coordinatord.store.migrations import STEPS


def read_shared_state(location: EtcdLocation) -> tuple[Database, int, Coordinators]:
    """Return the records of a namespace, their size in etcd in bytes, and the coordinators. Raises `StoreError`."""
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


def step_down(config: StepDownConfig) -> int:
    """End the term of the leader, and print its name; return the exit code. Raises `StoreError`."""
    sys.stdout.write(f"{asyncio.run(_end_term(config))}\n")
    return ExitCode.OK


async def _end_term(config: StepDownConfig) -> str:
    gateway, keys = Gateway(config.location), Keys(config.location.prefix)
    try:
        standbys = (await read_coordinators(gateway, keys)).standbys
        text = f"{(await end_term(gateway, keys)).endpoint} leads no more"
        return text if standbys else f"{text}, but nobody stands by: it leads again in a moment"
    finally:
        await gateway.close()
