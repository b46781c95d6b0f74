"""Assembles the daemon: machine, store, driver, sessions and HTTP on one port, from start to a clean end."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Struct

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.transitions.apply import HistoryError
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import SESSION_PATH
from coordinatord.runtime.logs import fields
from coordinatord.runtime.tasks import Tasks
from coordinatord.runtime.tcp_options import retransmit_steadily
from coordinatord.security.setup import Security
from coordinatord.security.token_store import valid_names
from coordinatord.server import page
from coordinatord.server.counters import Counters, measure_lag
from coordinatord.server.driver import NOT_SHARED, Driver, Sharing
from coordinatord.server.http import openapi
from coordinatord.server.http.access_guard import AccessGuard
from coordinatord.server.http.admin_api import AdminApi
from coordinatord.server.http.browser_guard import BrowserGuard, OwnNames
from coordinatord.server.http.events_api import EventsApi
from coordinatord.server.http.jobs_api import JobsApi
from coordinatord.server.http.live_updates import LiveUpdates
from coordinatord.server.http.logs_api import LogsApi
from coordinatord.server.http.page_access import PageAccess, cookie_name
from coordinatord.server.http.responses import RequestRejectedError, uniform_errors
from coordinatord.server.http.stacks_api import StacksApi
from coordinatord.server.metrics.scrape import Metrics
from coordinatord.server.reads.arrival_reads import ArrivalReads
from coordinatord.server.reads.change_signal import ChangeSignal
from coordinatord.server.reads.rounds_reader import RoundsReader
from coordinatord.server.reads.series_sampler import SeriesSampler
from coordinatord.server.reads.stack_reads import answer_looks
from coordinatord.server.sessions.connection_limits import ConnectionLimits
from coordinatord.server.sessions.connections import BACKLOG, IDLE_S, REQUEST_BYTES_MAX, Connections, start_runner
from coordinatord.server.sessions.node_sessions import NodeSessions
from coordinatord.server.sessions.revocation import watch_tokens
from coordinatord.store.database_store import Store
from coordinatord.store.error_texts import REMEDY
from coordinatord.store.interface import LEASE_OVER, UnreadableStoreError

log = logging.getLogger(__name__)

UNACKNOWLEDGED_MS = 20_000
"""How long a peer may acknowledge nothing before the kernel drops the connection: four leases of 5 s. By default, a
session to a lost host would last for a quarter of an hour."""

SHUTDOWN_S = 5.0
"""How long requests in progress may delay the end: nodes and people try again after a restart."""


class ListenError(OperationalError):
    """The daemon cannot listen on its address."""

    exit_code = ExitCode.OS_ERROR


@dataclass(slots=True)
class Server:
    """A running coordinator."""

    address: str
    """The IP address at which it listens."""
    port: int
    scheme: str
    """The scheme of its URL: `http` or `https`."""
    driver: Driver
    sessions: NodeSessions
    tasks: Tasks
    """The background tasks of the server. If one fails, the server ends."""
    change_signal: ChangeSignal

    @property
    def url(self) -> str:
        """The URL of the address at which it listens."""
        return f"{self.scheme}://{Endpoint(self.address, self.port)}"

    @property
    def endpoint(self) -> str:
        """HOST:PORT for people, browsers and nodes, with this host's name if it listens at all addresses."""
        everywhere = self.address in {"::", "0.0.0.0"}  # noqa: S104 - compared, not listened at
        return str(Endpoint(socket.gethostname() if everywhere else self.address, self.port))


class ListenAddress(Struct, frozen=True):
    """Where a coordinator listens, and its names."""

    host: str
    port: int
    """0 lets the kernel choose."""
    passed: Sequence[socket.socket] = ()
    """Open sockets, such as systemd's, to use instead of host and port."""
    names: Collection[str] = ()
    """Further names under which browsers may open its page."""


@asynccontextmanager
async def serve(
    address: ListenAddress,
    policy: Policy,
    store: Store,
    *,
    crashes: Path | None = None,
    security: Security | None = None,
    limits: ConnectionLimits | None = None,
    sharing: Sharing = NOT_SHARED,
) -> AsyncIterator[Server]:
    """Restore the state from the store, and serve at an address within the context.

    A bug of the machine leaves a crash file in the directory `crashes`. With `security`, all connections use TLS, and
    all callers need a token. Without `limits`, connections are limited by the descriptors that this process may open.
    Raises `ListenError`, and `StoreError` if the store cannot be read.
    """
    machine = Coordinator(policy, epoch=secrets.token_hex(3))  # no other life of the daemon makes the same run ids
    await _restore(machine, store, frozenset() if security is None else valid_names(security.token_store.tokens))
    listeners = listeners_at(address.host, address.port, address.passed)
    tasks, counters = Tasks(), Counters()
    driver = Driver(machine, store, tasks, counters, crashes, sharing)
    # Nodes and other callers
    gatekeeper, tls = (None, None) if security is None else (security.gatekeeper, lambda: security.context)
    limits = limits or ConnectionLimits.of_this_process()
    sessions = NodeSessions(driver, counters, limits)
    connections = Connections(sessions, gatekeeper, limits, tasks)
    page_access = PageAccess(gatekeeper, cookie_name("" if security is None else security.pin))
    access = AccessGuard(gatekeeper, page_access.cookie)
    # The handlers of requests, and what they read
    answer_looks(driver, sessions.reads, tasks)
    change_signal, rounds_reader, sampler = ChangeSignal(), RoundsReader(driver, store), SeriesSampler(driver)
    driver.durable_records.watchers.append(change_signal.on_records)
    admin_api, metrics = AdminApi(driver), Metrics(driver, counters, security)
    updates = LiveUpdates(driver, change_signal, rounds_reader, sampler, security is None)
    apis = (
        JobsApi(driver, change_signal, rounds_reader, insecure=security is None),
        EventsApi(driver, store, change_signal),
        LogsApi(driver, store, sessions.reads, change_signal),
        StacksApi(driver, sessions.reads),
        *(admin_api, updates, metrics, page_access),
    )
    # Each guard calls the next: errors of all are made uniform, and a token is recorded once `access` has accepted it.
    browser_guard = BrowserGuard(OwnNames([address.host, *address.names]))
    guards = [uniform_errors, connections.limit, browser_guard.guard, access.guard, connections.record_token]
    app = web.Application(client_max_size=REQUEST_BYTES_MAX, middlewares=[*guards, _while_leading(driver)])
    app.add_routes([web.get(SESSION_PATH, connections.take_over, allow_head=False), *page.routes(), *openapi.routes()])
    for api in apis:
        app.add_routes(api.routes)
    # aiohttp waits for requests twice: before it cancels them, and after.
    runner = await start_runner(app, idle_s=IDLE_S, shutdown_s=SHUTDOWN_S / 2)
    try:
        await connections.accept(listeners, runner, tls)
        driver.start()
        tasks.spawn(sampler.watch(), name="sampler")
        tasks.spawn(ArrivalReads(driver, sessions.reads, tasks).watch(), name="arrivals")
        if security is not None:
            tasks.spawn(watch_tokens(security, driver, sessions, access.end_invalid), name="tokens")
        tasks.spawn(measure_lag(counters), name="lag")
        bound_host, bound_port = listeners[0].getsockname()[:2]
        scheme = "http" if security is None else "https"
        yield Server(bound_host, bound_port, scheme, driver, sessions, tasks, change_signal)
    finally:
        await connections.drain()
        # The driver closes before the sessions: their end now says nothing about their nodes.
        for closable in (connections, driver, sessions, admin_api, change_signal):
            closable.close()
        await sessions.ended()
        await runner.cleanup()
        metrics.close()
        await tasks.cancel()


def _while_leading(driver: Driver) -> Middleware:
    """Return a middleware that rejects requests once another coordinator may lead, since our state may be old then."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not driver.sharing.may_act():
            raise RequestRejectedError(HTTPStatus.SERVICE_UNAVAILABLE, "standby", LEASE_OVER)
        return await handler(request)

    return guard


async def _restore(machine: Coordinator, store: Store, tokens: frozenset[str]) -> None:
    """Restore the machine's state from the store. Raises `StoreError`.

    `tokens` are the names of valid tokens. A node whose token is not among them, since it was revoked meanwhile, may
    come back with another one.
    """
    entries = await store.load()
    if not entries:
        return
    now, wall_now = asyncio.get_running_loop().time(), datetime.now(UTC).timestamp()
    # A record that seems to be from the future, because the clock was set back, counts as made just now.
    past = [(now - max(0.0, wall_now - entry.at), entry.record) for entry in entries]
    try:
        machine.restore(past, now, tokens)
    except HistoryError as error:
        raise UnreadableStoreError(f"the records contradict each other: {error}; {REMEDY}") from error
    live = list(machine.cluster.live)
    nodes = sum(len(run.members) for run in live)
    ended = len(machine.jobs) - len(live)
    names = fields("state_restored", live_jobs=len(live), nodes=nodes, ended_jobs=ended)
    log.info("state restored", extra=names)


def listeners_at(host: str, port: int, passed: Sequence[socket.socket]) -> list[socket.socket]:
    """Return the sockets to listen with: the passed ones, or else a new one at host and port. Raises `ListenError`."""
    for listener in passed:
        is_tcp = listener.family in {socket.AF_INET, socket.AF_INET6} and listener.type == socket.SOCK_STREAM
        if not is_tcp or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ListenError(
                "systemd passed a socket that nodes cannot connect to: coordinatord.socket must have Accept=no, and "
                "ListenStream= with a port, or with an address and a port"
            )
    listeners = list(passed) or [_listen(host, port)]
    for listener in listeners:
        # Accepted connections inherit both options.
        retransmit_steadily(listener)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    return listeners


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        dual = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    except UnicodeError as error:  # not a host name at all
        raise ListenError(f"{host} is no address of this host ({error}): see --host") from error
    except OSError as error:
        raise ListenError(_explain(host, port, error)) from error


def _explain(host: str, port: int, error: OSError) -> str:
    reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: is another coordinatord running? choose another port with --port"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"port {port} may not be used by this user: choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{host} is no address of this host ({reason}): see --host"
    return f"cannot listen on {host} port {port}: {reason}"
