"""Runs the daemon: announces its address, reloads its settings on SIGHUP, and ends on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial

import uvloop

from coordinatord.commands.delayed_end import end_after_ending_runs, end_when_unused, set_done
from coordinatord.commands.reload import Reloader
from coordinatord.commands.shared_access import SharedAccess
from coordinatord.commands.turns_to_lead import TurnsToLead, watch_for_cut_off
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.core.rounds.events import PolicyChanged
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime import __version__, logs
from coordinatord.runtime.logs import fields
from coordinatord.runtime.systemd import SystemdNotifier, status_of
from coordinatord.runtime.tasks import Tasks
from coordinatord.security.ephemeral_tokens import remove_files_of_ended
from coordinatord.security.setup import FOLDER, Security, SecuritySettings
from coordinatord.server.app import ListenAddress, ListenError, Server, listeners_at, serve
from coordinatord.server.driver import NOT_SHARED, Sharing
from coordinatord.server.sessions.connection_limits import BROWSER_CONNECTIONS, ConnectionLimits
from coordinatord.store.database_store import Store
from coordinatord.store.etcd.leadership import Candidate

log = logging.getLogger(__name__)

GARBAGE_THRESHOLD = 10_000
"""New objects per garbage collection, instead of 700. When thousands of nodes join, all new objects survive, and
collections took 40 % of the time (3,000 nodes: 1.07 ms of CPU a node; 0.70 with this number; 0.59 without collections).
Freezing the survivors of each full collection gained nothing more."""

THREAD_TURN_S = 0.001
"""The interpreter's switch interval, instead of 5 ms. A scrape of a thousand jobs formats text for 0.2 s, which delayed
answers to messages by 8 ms, and by 2 ms with this value."""

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""Addresses that only programs of this host reach."""


def run(settings: ServeConfig, store: Store | None) -> int:
    """Serve with a store until SIGTERM or SIGINT; return the exit code.

    If `store` is None, `settings` name a store that several coordinators share: this one stands by until it leads.
    Raises `OperationalError`, such as `StoreError`, `ListenError`, `OtherKeyError` and errors of files.
    """
    systemd = SystemdNotifier(os.environ, os.getpid())
    sys.setswitchinterval(THREAD_TURN_S)
    listeners = listeners_at(settings.host, settings.port, _systemd_sockets(systemd))
    security = _open_security(settings)  # after the sockets, so that a failed start leaves no key and no tokens
    _warn_of_few_files(ConnectionLimits.of_this_process())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, store, systemd, security, listeners))
    return ExitCode.OK


def _open_security(settings: ServeConfig) -> Security | None:
    """Return key and tokens, or None with `--insecure`. Raises `NoTokensDirectoryError` and errors of files."""
    remove_files_of_ended(os.environ)  # with --insecure too: nodes that found an old token would demand TLS
    if settings.insecure:
        text = "--insecure: everybody who reaches the port may join, stop and restart jobs, and nothing is encrypted"
        # `until_unused` is an embedded coordinator, which its node starts without TLS on purpose.
        harmless = settings.until_unused or settings.host in LOOPBACK
        log.log(logging.INFO if harmless else logging.WARNING, text, extra=fields("insecure"))
        return None
    directory = None if settings.state_dir is None else settings.state_dir / FOLDER
    where = SecuritySettings(directory, settings.certificate, settings.key, settings.client_authorities)
    security = Security(where, os.environ, time.monotonic)
    if settings.shared is None:  # else `SharedAccess` first compares the key with that of the others
        security.make_first_tokens()
    return security


def _warn_of_few_files(limits: ConnectionLimits) -> None:
    if limits.requests_per_address < BROWSER_CONNECTIONS:
        text = (
            "few files may be open at one time, so only %d nodes are let in, and connections of commands and pages may "
            "be cut off: raise the hard limit before coordinatord starts (ulimit -Hn, LimitNOFILE= in systemd)"
        )
        log.warning(text, limits.nodes, extra=fields("few_files", nodes=limits.nodes))


async def _serve(
    settings: ServeConfig,
    store: Store | None,
    systemd: SystemdNotifier,
    security: Security | None,
    listeners: Sequence[socket.socket],
) -> None:
    """Lead, or stand by and lead in turn with others, until a signal ends the program."""
    ended = _next_signal()
    reloader = Reloader(settings, security)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.reload)
    lead = partial(_lead, reloader, systemd, security, ended)
    try:
        if store is not None:
            await lead(store, listeners)
        elif settings.shared is not None:
            _enable_garbage_collection()  # it may stand by for weeks
            turns = TurnsToLead(settings, settings.shared, systemd, security, ended, lead)
            await turns.run(listeners)
    finally:
        if security is not None:
            security.close()


async def _lead(
    reloader: Reloader,
    systemd: SystemdNotifier,
    security: Security | None,
    ended: asyncio.Future[None],
    store: Store,
    listeners: Sequence[socket.socket],
    candidate: Candidate | None = None,
    access: SharedAccess | None = None,
) -> None:
    """Serve with this store until `ended` is done, and close it. Raises `LeadershipLostError`.

    `candidate` and `access` are None unless the store is shared.
    """
    settings = reloader.settings
    crashes = None if settings.state_dir is None else settings.state_dir / "crashes"
    address = ListenAddress(settings.host, settings.port, listeners, settings.allowed_hosts)
    sharing = NOT_SHARED if candidate is None else Sharing(candidate.may_act, candidate.status)
    resigned: asyncio.Task[None] | None = None
    try:
        async with serve(
            address, settings.policy, store, crashes=crashes, security=security, sharing=sharing
        ) as server:
            if candidate is not None and access is not None:
                _watch_leadership(server, candidate, access)
            _enable_garbage_collection()
            _announce(server)
            try:
                with reloader.changing(lambda policy: server.driver.submit(PolicyChanged(policy)), settings.policy):
                    await _serve_until(ended, server, settings, systemd)
            finally:
                if candidate is not None:
                    # Resign before the sessions are closed, which may take long, so that a standby can lead at once.
                    resigned = Tasks().spawn(candidate.resign(), name="resign")
    finally:
        if resigned is not None:
            await resigned
        await store.close()


async def _serve_until(
    ended: asyncio.Future[None], server: Server, settings: ServeConfig, systemd: SystemdNotifier
) -> None:
    """Serve until `ended` is done and no run is ending, or until another signal; tell systemd about it."""
    if settings.until_unused:
        server.tasks.spawn(end_when_unused(server.driver, ended), name="until unused")
    systemd.notify("READY=1", status_of(_status(server)))
    server.tasks.spawn(systemd.keep_alive(), name="watchdog")
    server.tasks.spawn(systemd.report_status(lambda: _status(server)), name="status")
    await server.tasks.guard(ended)
    systemd.notify("STOPPING=1")
    may_end = _next_signal()  # a second signal ends the wait
    server.tasks.spawn(end_after_ending_runs(server.driver, systemd, may_end), name="until no run ends")
    await server.tasks.guard(may_end)
    has_nodes = any(run.members for run in server.driver.machine.jobs.values() if not run.durable.state.ended)
    rest = "; the nodes keep their workers and look for a coordinator" if has_nodes else ""
    log.info("stopping%s", rest, extra=fields("stopping"))


def _watch_leadership(server: Server, candidate: Candidate, access: SharedAccess) -> None:
    """Start the tasks of a leader among several coordinators. A failure ends the server."""
    server.tasks.spawn(candidate.lead(), name="lease")
    candidate.roster.changed = server.change_signal.count  # pages show the standbys, which are in no record
    server.tasks.spawn(candidate.roster.watch(), name="roster")
    server.tasks.spawn(watch_for_cut_off(server.driver, candidate.roster), name="reach")
    server.tasks.spawn(access.watch(), name="access")


def _systemd_sockets(systemd: SystemdNotifier) -> list[socket.socket]:
    """Return the listening sockets that systemd has passed, if any. Raises `ListenError`."""
    try:
        passed = systemd.take_sockets()
    except OSError as error:
        raise ListenError(
            f"systemd passed a descriptor that is no socket ({error.strerror}): see coordinatord.socket"
        ) from error
    if passed:
        names = fields("sockets_passed", count=len(passed))
        log.info("systemd listens at the address in coordinatord.socket: --host and --port have no effect", extra=names)
    return passed


def _enable_garbage_collection() -> None:
    """Turn on garbage collection, which `commands.serve` has turned off for the start."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    gc.enable()


def _announce(server: Server) -> None:
    """Log how people reach the server, and print its URL for a program that has started this one."""
    where = server.endpoint
    if server.scheme == "https":
        text = "coordinatord %s serves at %s: nodeclient page --coord %s prints a link to its page"
    else:
        text = "coordinatord %s serves: open http://%s/, or ask with nodeclient status --coord %s"
    log.info(text, __version__, where, where, extra=fields("serving"))
    if _stdout_is_log():
        return
    try:
        # It is one write, so that no log line splits it in a shared pipe.
        sys.stdout.write(f"coordinatord listening on {server.url}\n")
        sys.stdout.flush()
    except OSError as error:
        log.warning("standard output cannot be written: %s", error, extra=fields("stdout_broken"))
        sys.stdout = None  # otherwise Python would retry at its end, and fail


def _stdout_is_log() -> bool:
    """Whether standard output and the log go to one terminal or journal, so that people would read two lines."""
    try:
        is_same = os.path.samestat(os.fstat(1), os.fstat(2))
    except OSError:
        return False
    return is_same and (os.isatty(1) or logs.leads_to_journal(1))


def _next_signal() -> asyncio.Future[None]:
    """Return a future that the next SIGTERM or SIGINT sets."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, set_done, ended)
    return ended


def _status(server: Server) -> str:
    """Return the text for `systemctl status`."""
    machine = server.driver.machine
    live = [run for run in machine.jobs.values() if not run.durable.state.ended]
    nodes = sum(len(run.members) for run in live)
    text = f"serving at {server.scheme}://{server.endpoint}: live jobs {len(live)}, nodes {nodes}"
    return text if machine.store_error is None else f"{text}; nothing can be recorded: {machine.store_error}"
