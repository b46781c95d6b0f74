"""`coordinatord` without a subcommand: a store, a server around it, and an orderly end on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys

import uvloop

from coordinatord.config import ServeConfig
from coordinatord.server.app import ListenError, serve
from coordinatord.shared import __version__, logs
from coordinatord.store.interface import Store
from coordinatord.store.memory import MemoryStore
from coordinatord.store.sqlite import SqliteStore
from coordinatord.wire.exits import ExitCode

log = logging.getLogger(__name__)

GARBAGE_THRESHOLD = 10_000
"""New objects after which Python looks for garbage, instead of after 700: when thousands of nodes join, all that is new
stays, and looking at it took 40 % of the time (3,000 nodes: 1.07 ms of CPU a node, 0.70 so, 0.59 if it never looked).
To freeze what is left after each full look, so that none sees it again, gained nothing on top."""


def serve_until_told(settings: ServeConfig) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises `StoreError` if the state cannot be kept or read."""
    logs.configure(settings.log_level, "coordinatord")
    _allow_many_connections()
    gc.set_threshold(GARBAGE_THRESHOLD)
    store = _open_store(settings)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, store))
    except ListenError as error:
        sys.stderr.write(f"coordinatord: {error}\n")
        return ExitCode.OS_ERROR
    return ExitCode.OK


def _allow_many_connections() -> None:
    """Raise the limit on open files, commonly 1,024, as far as this user may: each node is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open_store(settings: ServeConfig) -> Store:
    if settings.state_dir is None:
        log.info("state is kept in memory only: a restart of coordinatord forgets the jobs")
        return MemoryStore()
    store = SqliteStore.open(settings.state_dir)
    log.info("state is kept in %s", settings.state_dir.absolute())
    return store


async def _serve(settings: ServeConfig, store: Store) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, _end, ended)
    try:
        async with serve(settings.host, settings.port, settings.policy, store) as server:
            _announce(server.url)
            notify_systemd("READY=1")
            await server.until(ended)
            notify_systemd("STOPPING=1")
            log.info("stopping; the nodes keep their workers and look for a coordinator")
    finally:
        await store.close()


def _announce(url: str) -> None:
    log.info("coordinatord %s serves at %s", __version__, url)
    try:
        print(f"coordinatord listening on {url}", flush=True)  # noqa: T201 - what starts us waits for this line
    except OSError as error:
        log.warning("standard output cannot be written: %s", error)
        sys.stdout = None  # or Python would try again at its end, and fail


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def notify_systemd(state: str) -> None:
    """Tell systemd, if it started us with Type=notify (see sd_notify(3)); otherwise do nothing."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # A name that begins with @ is in the abstract namespace, which the kernel writes with a null byte.
    address = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        try:
            notify.sendto(state.encode(), address)
        except OSError as error:
            log.warning("systemd cannot be told %s at NOTIFY_SOCKET: %s", state, error)
