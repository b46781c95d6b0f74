"""Bounds the number of connections of each kind, and ends those that do not prove in time what they are.

A connection takes a descriptor, and some memory. So the descriptors that this process may have are shared out:
connections without a request cannot use up those of nodes, and nodes cannot use up those of HTTP clients.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from coordinatord.runtime.timers import Patience

ASK_WITHIN_S = 30.0
"""The limit for the TLS handshake, and again for the head of the first request: ten times what either takes if a third
of all packets are lost, and enough for the last of 10,000 nodes that come at once."""

OWN_FILES = 64
"""Descriptors for the store, the listening sockets and the log: it has some 20 open."""

SILENT_MAX = 16_384
"""Connections without a whole request, also those in a TLS handshake: enough for 10,000 nodes that come at once. One
that sends anything takes up to 300 KiB with its buffers for TLS."""

JOINING_MAX = 16_384
"""Sessions without a `Join`, for the same reason."""

REQUESTS_MAX = 1_024
"""Connections over HTTP: pages, followers of events and readers of logs are a few hundred at most, together."""

SHARE_OF_ADDRESS = 3 / 4
"""The part of the connections without a request, and of those without a `Join`, that one address may have: 10,000 nodes
behind one address (NAT, Kubernetes) come in, and the rest is for others."""

REQUESTS_OF_ADDRESS = 1 / 4
"""The part of the connections over HTTP that one address may have: a proxy with a hundred pages open."""

SHARE_OF_TURNED_AWAY = 1 / 2
"""The part of the sessions without a `Join` that may be about to end, because they were refused."""


class ConnectionLimits(Struct, frozen=True):
    """The number of connections of each kind that no other kind can use up."""

    silent: int
    joining: int
    requests: int
    nodes: int

    @property
    def requests_of_address(self) -> int:
        """How many connections over HTTP one address may have."""
        return max(1, int(self.requests * REQUESTS_OF_ADDRESS))

    @property
    def turned_away(self) -> int:
        """How many sessions that were refused before a `Join` may still wait for the other side to close.

        They have a part of the place for sessions without a `Join`, so that the others keep the rest.
        """
        return max(1, int(self.joining * SHARE_OF_TURNED_AWAY))

    def silent_beside(self, sessions: int) -> int:
        """Return how many connections may be without a request beside so many sessions.

        They may use what nodes leave free, since all nodes begin as such connections, and 10,000 may come at once.
        """
        return min(SILENT_MAX, self.silent + self.joining + self.nodes - sessions)

    def joining_beside(self, nodes: int) -> int:
        """Return how many sessions may be without a `Join` beside so many nodes: they too may use what these leave."""
        return min(JOINING_MAX, self.joining + self.nodes - nodes)

    @classmethod
    def of(cls, descriptors: int) -> ConnectionLimits:
        """Share out so many descriptors; half of them are for nodes where there are few."""
        free = max(8, descriptors - OWN_FILES)
        silent, joining = min(SILENT_MAX, free // 4), min(JOINING_MAX, free // 8)
        requests = min(REQUESTS_MAX, free // 8)
        return cls(silent, joining, requests, free - silent - joining - requests)

    @classmethod
    def of_this_process(cls) -> ConnectionLimits:
        """Share out what the system grants to this process."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls.of(UNLIMITED if soft == resource.RLIM_INFINITY else soft)


UNLIMITED = 1 << 20
"""The limit that is assumed where there is none: the most that Linux gives to a process by default."""


Waiting = TypeVar("Waiting", bound=Hashable)


class Silent(Hashable, Protocol):
    """A connection without a whole request."""

    def force_close(self) -> None:
        """End the connection at once."""


class Unproven(Generic[Waiting]):
    """Connections that have to send something in time: a request, a `Join`, or the end. Their number is bounded.

    One too many ends the oldest one of the address that has the most. So a flood ends its own connections, and not
    those of others.
    """

    def __init__(self, within_s: float, most: Callable[[], int], give_up: Callable[[Waiting], None]) -> None:
        """Wait `within_s` seconds for each, for at most `most()` at one time; `give_up` ends one that is late."""
        self._most = most
        self._give_up = give_up
        self._patience = Patience[Waiting](within_s, self._end)
        self._addresses: dict[Waiting, str] = {}
        self._by_address: dict[str, dict[Waiting, None]] = {}
        self._emptied = asyncio.Event()
        """Set when no connection is left."""

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, waiting: Waiting) -> bool:
        return waiting in self._addresses

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._addresses)

    def add(self, waiting: Waiting, address: str) -> None:
        """Begin to wait for a connection from an address."""
        of_address, most = self._by_address.get(address), self._most()
        if of_address is not None and len(of_address) >= max(1, int(most * SHARE_OF_ADDRESS)):
            self._end(next(iter(of_address)))
        elif self._addresses and len(self._addresses) >= most:
            crowded = max(self._by_address, key=lambda known: len(self._by_address[known]))
            self._end(next(iter(self._by_address[crowded])))
        self._addresses[waiting] = address
        self._by_address.setdefault(address, {})[waiting] = None
        self._patience.add(waiting)

    def discard(self, waiting: Waiting) -> bool:
        """Stop waiting for a connection; return whether it was waited for."""
        self._patience.discard(waiting)
        address = self._addresses.pop(waiting, None)
        if address is None:
            return False
        of_address = self._by_address[address]
        del of_address[waiting]
        if not of_address:
            del self._by_address[address]
        if not self._addresses:
            self._emptied.set()
        return True

    async def await_young(self, seconds: float) -> None:
        """Wait until no connection is left, for so many seconds at most; those that are older than that end at once."""
        self._patience.expire_older(seconds)
        self._emptied.clear()
        if self._addresses:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), seconds)

    def close(self) -> None:
        """Forget all connections."""
        self._patience.close()
        self._addresses.clear()
        self._by_address.clear()

    def _end(self, waiting: Waiting) -> None:
        self.discard(waiting)
        self._give_up(waiting)
