"""Accepts connections, and gives up those that ask for nothing: how long one may take, and how many there may be.

aiohttp gives up one that is silent after a request, but not before its first. Each is a descriptor, and where these are
used up no node can come back.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from collections.abc import Iterable
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler

ASK_WITHIN_S = 30.0
"""For the whole head of the first request: ten times what it takes on a network that loses a third of all packets, and
what it may wait for its turn here while 10,000 nodes come at once."""

SHARE = 2
"""So many times more descriptors there are than such connections: the rest is for nodes, and for what they ask."""


class Connections:
    """What is listened with, and all connections that have not asked yet, the oldest first."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._silent: dict[web.RequestHandler, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._servers: list[asyncio.Server] = []
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = sys.maxsize if soft == resource.RLIM_INFINITY else max(1, soft // SHARE)

    async def accept(self, listeners: Iterable[socket.socket], runner: web.AppRunner, backlog: int) -> None:
        """Begin to accept connections, which `runner`, that is set up, will serve."""
        for listener in listeners:
            self._servers.append(
                await self._loop.create_server(partial(self._watched, runner), sock=listener, backlog=backlog)
            )

    def _watched(self, runner: web.AppRunner) -> web.RequestHandler:
        assert runner.server is not None  # noqa: S101 - it is there after the setup
        made = runner.server()
        if len(self._silent) >= self._most:
            self._give_up(next(iter(self._silent)))
        self._silent[made] = self._loop.time() + ASK_WITHIN_S
        if self._timer is None:
            self._arm()
        return made

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a connection has asked for something."""
        self._silent.pop(request.protocol, None)
        return await handler(request)

    def close(self) -> None:
        """Accept no more, and look no more."""
        for server in self._servers:
            server.close()
        if self._timer is not None:
            self._timer.cancel()
        self._silent.clear()

    def _arm(self) -> None:
        self._timer = self._loop.call_at(next(iter(self._silent.values())), self._look) if self._silent else None

    def _look(self) -> None:
        now = self._loop.time()
        for protocol, until in list(self._silent.items()):
            if until > now:
                break
            self._give_up(protocol)
        self._arm()

    def _give_up(self, protocol: web.RequestHandler) -> None:
        del self._silent[protocol]
        protocol.force_close()
