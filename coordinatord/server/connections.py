"""Accepts connections, and closes those that send no request: bounds how long one may take and how many there may be.

aiohttp closes one that is silent after a request, but not before its first. Each takes a descriptor, and when these are
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
"""The limit for the whole head of the first request: ten times what it takes on a network that loses a third of all
packets, and what it may wait for its turn here while 10,000 nodes come at once."""

SHARE = 2
"""One in so many descriptors may be such a connection: the rest is for nodes and their requests."""


class Connections:
    """The listening sockets, and all connections without a request so far, the oldest first."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._silent: dict[web.RequestHandler, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._servers: list[asyncio.Server] = []
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = sys.maxsize if soft == resource.RLIM_INFINITY else max(1, soft // SHARE)

    async def accept(self, listeners: Iterable[socket.socket], runner: web.AppRunner, backlog: int) -> None:
        """Begin to accept connections for `runner`, which must be set up."""
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
        """Note that a connection has sent a request."""
        self._silent.pop(request.protocol, None)
        return await handler(request)

    def close(self) -> None:
        """Stop accepting and checking connections."""
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
