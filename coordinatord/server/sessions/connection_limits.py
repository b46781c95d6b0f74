"""Limits the number of connections of each kind, and ends those that do not send their first message in time.

A new connection is *pending* until it has sent a whole HTTP request. Then it is a node's session, which begins with a
`Join`, or it is over HTTP. Each connection takes a file descriptor and some memory. The descriptors of this process are
divided among these kinds, so that connections without a request cannot use up those of nodes, nor nodes those of HTTP
clients.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from coordinatord.runtime.timers import Timeouts

REQUEST_WITHIN_S = 30.0
"""The time limit of the TLS handshake, and again of the head of the first request. Either takes a tenth of this if a
third of all packets are lost. It is enough for the last of 10,000 nodes that connect at once."""

OWN_FILES = 64
"""Descriptors to spare for the store, the listening sockets and the log: three times the 20 or so that are open."""

PENDING_MAX = 16_384
"""The limit of connections without a whole request, including those in a TLS handshake: enough for 10,000 nodes that
connect at once. Each takes up to 300 KiB with its TLS buffers."""

JOINING_MAX = 16_384
"""The limit of sessions without a `Join`, for the same reason."""

REQUESTS_MAX = 1_024
"""The limit of connections over HTTP: pages and readers of events and logs are a few hundred at most."""

ADDRESS_SHARE = 3 / 4
"""The share of the connections without a request, and of the sessions without a `Join`, that one address may have.
Behind one address (NAT, Kubernetes) there may be 10,000 nodes."""

BROWSER_CONNECTIONS = 6
"""The connections over HTTP that a browser opens at one time. If an address may not have as many, the daemon warns at
its start that too few files may be open."""

ADDRESS_REQUESTS_SHARE = 1 / 4
"""The share of the connections over HTTP that one address may have, such as a proxy with a hundred open pages."""

REFUSED_SHARE = 1 / 2
"""The number of refused sessions that may be closing, as a share of the sessions without a `Join`. They were such
sessions until they were refused."""

UNLIMITED_FILES = 1 << 20
"""The assumed limit of descriptors if the system sets none: Linux's default maximum for a process."""


class ConnectionLimits(Struct, frozen=True):
    """The numbers of connections that are reserved for each kind."""

    pending: int
    """Connections without a whole request."""
    joining: int
    """Sessions without a `Join`."""
    requests: int
    """Connections over HTTP."""
    nodes: int
    """Sessions with a `Join`."""

    @property
    def requests_per_address(self) -> int:
        """How many connections over HTTP one address may have."""
        return max(1, int(self.requests * ADDRESS_REQUESTS_SHARE))

    @property
    def closing(self) -> int:
        """How many sessions that were refused before their `Join` may wait for the peer's close frame."""
        return max(1, int(self.joining * REFUSED_SHARE))

    def pending_max(self, sessions: int) -> int:
        """Return how many connections may be without a request while there are this many sessions.

        They may use the free places of sessions, since each node begins as such a connection.
        """
        return min(PENDING_MAX, self.pending + self.joining + self.nodes - sessions)

    def joining_max(self, nodes: int) -> int:
        """Return how many sessions may be without a `Join` beside `nodes` others, joined or refused."""
        return min(JOINING_MAX, self.joining + self.nodes - nodes)

    @classmethod
    def of(cls, descriptors: int) -> ConnectionLimits:
        """Divide this many descriptors among the kinds; nodes get at least half of them."""
        free = max(8, descriptors - OWN_FILES)  # with 8, each kind has at least one
        pending, joining = min(PENDING_MAX, free // 4), min(JOINING_MAX, free // 8)
        requests = min(REQUESTS_MAX, free // 8)
        return cls(pending, joining, requests, free - pending - joining - requests)

    @classmethod
    def of_this_process(cls) -> ConnectionLimits:
        """Divide the descriptors that the system grants to this process."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls.of(UNLIMITED_FILES if soft == resource.RLIM_INFINITY else soft)


Connection = TypeVar("Connection", bound=Hashable)


class Closable(Hashable, Protocol):
    """A connection of any kind, in a TLS handshake or after it."""

    def force_close(self) -> None:
        """End the connection at once."""


class PendingConnections(Generic[Connection]):
    """A limited number of connections that must all send the same in time: a request, a `Join`, or a close frame.

    Beyond the limit, the oldest connection of the address with the most connections is closed. Beyond the share of one
    address, its oldest connection is closed. So a client that floods the port loses only its own connections.
    """

    def __init__(self, within_s: float, most: Callable[[], int], close: Callable[[Connection], None]) -> None:
        """Give each connection `within_s` seconds, and keep at most `most()`; `close` closes a connection."""
        self._most = most
        self._close = close
        self._timeouts = Timeouts[Connection](within_s, self._evict)
        self._addresses: dict[Connection, str] = {}
        self._by_address: dict[str, dict[Connection, None]] = {}
        """The connections of each address, oldest first."""
        self._emptied = asyncio.Event()
        """Set when no connection is left."""

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._addresses

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._addresses)

    def add(self, connection: Connection, address: str) -> None:
        """Start the timeout of a connection from an address; close another one if there are too many."""
        of_address, most = self._by_address.get(address), self._most()
        if of_address is not None and len(of_address) >= max(1, int(most * ADDRESS_SHARE)):
            self._evict(next(iter(of_address)))
        elif self._addresses and len(self._addresses) >= most:
            crowded = max(self._by_address, key=lambda known: len(self._by_address[known]))
            self._evict(next(iter(self._by_address[crowded])))
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        self._timeouts.add(connection)

    def discard(self, connection: Connection) -> bool:
        """Remove a connection without closing it; return whether it was pending."""
        self._timeouts.discard(connection)
        address = self._addresses.pop(connection, None)
        if address is None:
            return False
        of_address = self._by_address[address]
        del of_address[connection]
        if not of_address:
            del self._by_address[address]
        if not self._addresses:
            self._emptied.set()
        return True

    async def drain(self, seconds: float) -> None:
        """Close the connections that are older than `seconds`, and wait at most `seconds` until none is left."""
        self._timeouts.expire_older(seconds)
        self._emptied.clear()
        if self._addresses:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), seconds)

    def close(self) -> None:
        """Remove all connections without closing them."""
        self._timeouts.close()
        self._addresses.clear()
        self._by_address.clear()

    def _evict(self, connection: Connection) -> None:
        self.discard(connection)
        self._close(connection)
