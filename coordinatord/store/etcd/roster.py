"""Lists the coordinators of a namespace, the leader and the standbys: each describes itself in a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import Struct

from coordinatord.protocol.http.api import AnyText, CoordinatorStatus, Number
from coordinatord.protocol.schema import ERRORS
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.requests import KeyValue
from coordinatord.store.interface import NothingStoredError, StoreError

STANDBYS_AT_ONCE = 100
"""How many standbys are read at once."""

POLL_EVERY_S = 2.0
"""How often the leader reads who stands by. The key of a dead standby lasts for its lease anyway."""


class Coordinatord(Struct, frozen=True):
    """A coordinator of a namespace, as its key describes it to others."""

    name: AnyText
    """The name of its host."""
    endpoint: AnyText
    """HOST:PORT, where nodes reach it."""
    secure: bool
    """Whether it serves over TLS."""
    since: Number
    """When it began to lead or to stand by, in seconds since 1970 by its host's clock; for people."""

    @property
    def status(self) -> CoordinatorStatus:
        """The coordinator as `nodeclient status` shows it."""
        return CoordinatorStatus(host=self.name, endpoint=self.endpoint, since=self.since)

    def packed(self) -> bytes:
        """Encode it as the value of a key."""
        return msgspec.json.encode(self)

    @classmethod
    def unpack(cls, pair: KeyValue) -> Coordinatord:
        """Parse the value of a key. Raises `StoreError`."""
        try:
            return msgspec.json.decode(pair.value, type=cls)
        except ERRORS as error:
            raise StoreError(f"key {pair.key.decode(errors='replace')} names no coordinatord: remove it") from error


class Coordinators(Struct, frozen=True):
    """The coordinators of a namespace at one moment."""

    leader: Coordinatord | None
    standbys: tuple[Coordinatord, ...]
    lease_s: float | None
    """The remaining seconds of the leader's lease; None if none leads."""


async def read_coordinators(gateway: Gateway, keys: Keys) -> Coordinators:
    """Read the leader and the standbys. Raises `StoreError`."""
    standbys = await _standbys(gateway, keys)
    leader = await gateway.read(keys.leader)
    if leader is None:
        return Coordinators(None, standbys, None)
    lease = await gateway.call("/v3/lease/timetolive", {"ID": str(leader.lease)})
    return Coordinators(Coordinatord.unpack(leader), standbys, float(max(0, lease.ttl)))


async def end_term(gateway: Gateway, keys: Keys) -> Coordinatord:
    """Revoke the lease of the leader; return the former leader. Raises `NothingStoredError`, and other `StoreError`.

    The former leader notices it by its watch of the key, or at its next commit.
    """
    leader = await gateway.read(keys.leader)
    if leader is None:
        raise NothingStoredError(f"nobody leads below {keys.prefix}/")
    await gateway.call("/v3/lease/revoke", {"ID": str(leader.lease)})
    return Coordinatord.unpack(leader)


class Roster:
    """The leader's list of standbys."""

    def __init__(self, gateway: Gateway, keys: Keys) -> None:
        """Begin without standbys, until `watch` reads them."""
        self._gateway = gateway
        self._keys = keys
        self.standbys: tuple[Coordinatord, ...] = ()
        """The standbys at the last successful read."""
        self.problem = "they have not been read yet"
        """Why the last read failed; empty if it succeeded."""
        self.changed: Callable[[], None] = lambda: None
        """Called when `standbys` or `problem` has changed."""

    async def watch(self) -> None:
        """Poll the standbys until cancelled."""
        while True:
            before = self.standbys, self.problem
            try:
                self.standbys, self.problem = await _standbys(self._gateway, self._keys), ""
            except StoreError as error:
                self.problem = str(error)
            if (self.standbys, self.problem) != before:
                self.changed()
            await asyncio.sleep(POLL_EVERY_S)


async def _standbys(gateway: Gateway, keys: Keys) -> tuple[Coordinatord, ...]:
    return tuple([Coordinatord.unpack(pair) async for pair in gateway.all_below(keys.standbys, STANDBYS_AT_ONCE)])
