"""The daemon put together: machine, store, driver, sessions and HTTP on one port, from start to a clean end."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from coordinatord.core.history import HistoryError
from coordinatord.core.machine import Coordinator
from coordinatord.core.policy import Policy
from coordinatord.server.api import Api
from coordinatord.server.driver import Driver
from coordinatord.server.sessions import Sessions
from coordinatord.shared.sockets import keep_trying
from coordinatord.shared.tasks import Tasks
from coordinatord.store.interface import Store, UnreadableStoreError
from coordinatord.store.troubles import REMEDY
from coordinatord.wire.messages import SESSION_PATH

log = logging.getLogger(__name__)

BACKLOG = 4_096
"""Connections that the kernel accepts ahead of us when a whole cluster starts at once; Linux' own cap since 5.4."""

REQUEST_BYTES_MAX = 64 * 1024
"""No request has a body as yet."""

UNACKNOWLEDGED_MS = 20_000
"""After so long without an answer to what was sent, the kernel gives a connection up: four leases of 5 s. Without it, a
session to a host that is gone would linger for a quarter of an hour."""

SHUTDOWN_S = 5.0
"""How long requests in progress may take to end; longer ones are cut, nodes look for the coordinator again anyway."""


class _BadRequests(logging.Filter):
    """Makes one quiet line of what aiohttp reports with a traceback, if it is the fault of whoever asked."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let all else through as it is."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | ConnectionError):
            record.levelno, record.levelname, record.exc_info = logging.DEBUG, "DEBUG", None
            record.msg, record.args = "bad request: %s", (type(error).__name__,)
            return logging.getLogger().isEnabledFor(logging.DEBUG)
        return True


class ListenError(Exception):
    """The address cannot be listened on; the text says why and what to do."""


class Server:
    """A coordinator that serves."""

    def __init__(self, address: str, port: int, driver: Driver, tasks: Tasks) -> None:
        self.address = address
        self.port = port
        self.driver = driver
        self._tasks = tasks

    @property
    def url(self) -> str:
        """Where it serves."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"

    async def until(self, ended: asyncio.Future[None]) -> None:
        """Serve until `ended` is done; raise what keeps the server from going on, such as `StoreError`."""
        await self._tasks.guard(ended)


_BAD_REQUESTS = _BadRequests()


@asynccontextmanager
async def serve(host: str, port: int, policy: Policy, store: Store) -> AsyncIterator[Server]:
    """Serve at `host`:`port` while the context lasts; port 0 lets the kernel choose.

    Goes on from what the store holds. Raises `ListenError`, and `StoreError` if that cannot be read.
    """
    machine = Coordinator(policy, epoch=secrets.token_hex(3))
    await _restore(machine, store)
    listener = _listen(host, port)
    logging.getLogger("aiohttp.server").addFilter(_BAD_REQUESTS)
    tasks = Tasks()
    sessions = Sessions()
    driver = Driver(machine, store, sessions.deliver, tasks)
    sessions.attach(driver)
    app = web.Application(client_max_size=REQUEST_BYTES_MAX)
    app.add_routes([web.get(SESSION_PATH, sessions.serve), *Api(driver).routes()])
    # Cancellation on disconnect is off by default in production and on in aiohttp's test server: said here, it is one.
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        driver.start()
        address, bound_port = listener.getsockname()[:2]
        yield Server(address, bound_port, driver, tasks)
    finally:
        driver.close()
        sessions.close()
        await runner.cleanup()
        await tasks.cancel()


async def _restore(machine: Coordinator, store: Store) -> None:
    """Let the machine take up what an earlier life of the daemon recorded. Raises `StoreError`."""
    entries = await store.load()
    if not entries:
        return
    now, wall_now = asyncio.get_running_loop().time(), datetime.now(UTC).timestamp()
    # A clock that was set back since gives records of the future: they are as young as can be.
    past = [(now - max(0.0, wall_now - entry.at), entry.record) for entry in entries]
    try:
        machine.restore(past, now)
    except HistoryError as error:
        raise UnreadableStoreError(f"the records contradict each other: {error}; {REMEDY}") from error
    live = [run for run in machine.jobs.values() if not run.state.ended]
    nodes = sum(len(run.members) for run in live)
    log.info(
        "state restored: live jobs %d with nodes %d, ended jobs %d", len(live), nodes, len(machine.jobs) - len(live)
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        dual = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    except OSError as error:
        raise ListenError(_explain(host, port, error)) from error
    # Accepted connections inherit both.
    keep_trying(listener)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    return listener


def _explain(host: str, port: int, error: OSError) -> str:
    reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: is another coordinatord running? choose another port with --port"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"port {port} may not be used by this user: choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{host} is no address of this host ({reason}): see --host"
    return f"cannot listen on {host} port {port}: {reason}"
