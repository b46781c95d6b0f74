"""The program `coordinatord`: from the command line to a running server and its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys

import uvloop

from coordinatord import config
from coordinatord.config import Config
from coordinatord.server.app import ListenError, serve
from coordinatord.shared import __version__, bugs, logs
from coordinatord.store.interface import StoreError
from coordinatord.store.memory import MemoryStore
from coordinatord.wire.exits import ExitCode

log = logging.getLogger(__name__)


def main() -> None:
    """Serve until SIGTERM or SIGINT. Exits with 0, or with a sysexits code after one line that says why."""
    logs.replace_closed_streams()
    try:
        settings = config.parse()
        logs.configure(settings.log_level, "coordinatord")
        _allow_many_connections()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings))
    except KeyboardInterrupt:  # before the signals are handled
        sys.exit(ExitCode.INTERRUPTED)
    except ListenError as error:
        _fail(str(error), ExitCode.OS_ERROR)
    except StoreError as error:
        _fail(f"the state cannot be kept: {error}", ExitCode.OS_ERROR)
    except Exception:  # noqa: BLE001 - the last resort, and it says all there is to know
        sys.exit(bugs.report_bug("coordinatord"))


def _allow_many_connections() -> None:
    """Raise the limit on open files, commonly 1,024, as far as this user may: each node is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(settings: Config) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, _end, ended)
    if settings.state_dir is not None:
        log.warning("state is kept in memory only: a restart of coordinatord forgets the jobs")
    async with serve(settings.host, settings.port, settings.policy, MemoryStore()) as server:
        _announce(server.url)
        notify_systemd("READY=1")
        await server.until(ended)
        notify_systemd("STOPPING=1")
        log.info("stopping; the nodes keep their workers and look for a coordinator")


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


def _fail(message: str, code: ExitCode) -> None:
    sys.stderr.write(f"coordinatord: {message}\n")
    sys.exit(code)
