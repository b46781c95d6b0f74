"""A coordinator that a node starts as its child, so that the user need not start one.

There are three kinds. That of `--standalone` serves only this host, at a port that the kernel chooses, and ends with
the node. If the user has named an endpoint as for torchrun's own store, the node on the host with this address starts a
coordinator there. `nodeclient up` starts one that demands tokens. The last two are shared: other nodes and jobs may use
them, so they outlive the node, however it ends, until nobody needs them.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from msgspec import structs

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode, describe_exit
from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.ip_addresses import Endpoint, is_loopback, plain_address
from coordinatord.runtime.logs import fields
from coordinatord.runtime.own_python import isolated
from coordinatord.runtime.tasks import in_thread
from nodeclient.access.keyring import INSECURE_ACCESS
from nodeclient.config.join_config import JoinConfig
from nodeclient.host.addresses import interface_of
from nodeclient.host.ports import PortReservation
from nodeclient.workers.process_tree import MARK_VARIABLE
from nodeclient.workers.spawn import die_with_parent, pidfd_of_child

log = logging.getLogger(__name__)

START_WITHIN_S = 120.0
"""The timeout of a start, which takes a quarter of a second; the rest is for an overloaded host."""

PATIENCE_S = 5.0
"""How long a node without workers looks for its standalone coordinator, which answers at once unless it has ended."""

FAREWELL_S = 10.0
"""How long this node waits until the others have received the end of the job: two leases, for bad links. It must wait,
because where it is the first process of a container, its end ends the coordinator."""

KILL_AFTER_S = 8.0
"""When a coordinator that was asked to end is killed. It takes at most 5 s."""

ALWAYS = ("--ephemeral", "--log-level", "warning")
"""The flags of every embedded coordinator. Its state ends with it."""

IN_THE_CLEAR = "--insecure"
"""The flag of a coordinator without tokens. A node that brings one along cannot hand a token to nodes on other hosts;
one at loopback cannot be reached from there."""

STANDALONE = (IN_THE_CLEAR, "--host", "127.0.0.1", "--port", "0", "--outage-grace", f"{DURATION_S_MAX}")
"""The further flags of a coordinator for this host only. The longest outage grace lets this node go on after it was
stopped for hours, as by Ctrl-Z. No worker waits that long for a coordinator that is gone, since this node notices the
end of its child at once."""

FOR_OTHERS = ("--port", "0", "--until-unused")
"""The further flags of a coordinator that `nodeclient up` starts. Its nodes need a token, which it leaves in the
user's directory."""

_PROGRAM = "from coordinatord.cli import main\nmain()"

_LISTENING = re.compile(r"coordinatord listening on https?://\S+:(?P<port>\d+)\n")
_SERVES_ON = re.compile(r"coordinatord serves on for (?P<jobs>.+)\n")
"""The lines that a coordinator writes to stdout for the program that has started it."""


class EmbeddedCoordinatorError(OperationalError):
    """The embedded coordinator did not start; it has written the reason to stderr itself.

    `exit_code` is that of the coordinator, or 69 if it was killed or is too slow.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__("the coordinator that this node brings along did not start")
        self.exit_code = exit_code if exit_code > 0 else ExitCode.UNAVAILABLE


@asynccontextmanager
async def coordinator_for(config: JoinConfig) -> AsyncIterator[tuple[JoinConfig, EmbeddedCoordinator]]:
    """Start a coordinator if the config asks for one; yield the config to join with, and the coordinator.

    Raises `EmbeddedCoordinatorError`.
    """
    async with EmbeddedCoordinator(config.log_format) as embedded:
        yield await _complete(config, embedded), embedded


async def _complete(config: JoinConfig, embedded: EmbeddedCoordinator) -> JoinConfig:
    """Start a coordinator if the config asks for one; return the config to join with."""
    if config.standalone:
        await embedded.start(*STANDALONE, shared=False)
        endpoint = Endpoint("127.0.0.1", embedded.port)
        return structs.replace(config, coordinators=(endpoint,), access=INSECURE_ACCESS, join_timeout_s=PATIENCE_S)
    endpoint = config.coordinators[0]
    addresses = await own_addresses(endpoint.host) if config.own_coordinator else ()
    if not addresses:
        return config
    flags = _only_for_this_host(endpoint.host, addresses)
    if not await _start_at(embedded, endpoint.port, *flags):
        return config
    served = (
        "only for this host: if others are to join, give all nodes an endpoint by which they reach this host"
        if flags
        else "for all that reach it, as torchrun's own store does"
    )
    remark = (
        f"no coordinator listened at {endpoint}, which is this host: this node brings one along. It serves for as long "
        f"as nodes need it, in the clear and {served}. A coordinatord that "
        "is started apart serves only nodes with a token, and survives the loss of this host"
    )
    return structs.replace(config, remarks=(*config.remarks, remark))


async def own_addresses(host: str) -> tuple[str, ...]:
    """Return the addresses of `host` if all of them are this host's own, else none.

    A name of several hosts names no single coordinator.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the session reports it
        return ()
    addresses = tuple(str(address[0]) for *_, address in found)
    return addresses if all(map(_is_own, addresses)) else ()


def _is_own(address: str) -> bool:
    """Whether an address is this host's own. A socket that binds to it proves nothing if `ip_nonlocal_bind` is set.

    A loopback address is one even where IPv6 is off and the hosts file has ::1. 0.0.0.0 leads to loopback.
    """
    plain = ipaddress.ip_address(plain_address(address))
    return plain.is_loopback or plain.is_unspecified or interface_of(str(plain)) is not None


def _only_for_this_host(host: str, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags with which a coordinator listens on loopback only, if `host` is that on every host; else none.

    A name of this host is not, even if the hosts file has 127.0.1.1 for it: others find another address.
    """
    if host != "localhost" and not is_loopback(host):
        return ()
    return ("--host", next((address for address in addresses if ":" not in address), addresses[0]))


async def _start_at(embedded: EmbeddedCoordinator, port: int, *flags: str) -> bool:
    """Start a coordinator at `port`; return False if another program has it. Raises `EmbeddedCoordinatorError`."""
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            # An abstract name ends with its process, and exists once in a network namespace, as a port does (unix(7)).
            lock.bind(f"\0nodeclient brings a coordinator along at {port}")
        except OSError:
            return False
        if _is_taken(port):
            return False
        try:
            await embedded.start(IN_THE_CLEAR, "--port", str(port), "--until-unused", *flags, shared=True)
        except EmbeddedCoordinatorError:
            if _is_taken(port):
                return False
            raise
    return True


def _is_taken(port: int) -> bool:
    try:
        PortReservation(port).close()  # succeeds in spite of old connections in TIME_WAIT
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _environ() -> dict[str, str]:
    """Return this process's environment without settings of another coordinatord.

    The mark stays: if this node is a worker of another node, that one finds the coordinator by it, and can kill it.
    """
    settings = {name for name in os.environ if name.startswith("COORDINATORD_")} - {MARK_VARIABLE}
    return {name: value for name, value in os.environ.items() if name not in settings}


class EmbeddedCoordinator:
    """The coordinatord that this process may start as its child, once. `__aexit__` hands it over, or ends it."""

    def __init__(self, log_format: str) -> None:
        """Begin without a process, in the running loop."""
        self._log_format = log_format
        self.port = 0
        self.ended: asyncio.Future[str] | None = None
        """Done with a description of its end once it ends, if it serves only this node, which then ends as well. None
        for a shared coordinator: another node may start one in its place."""
        self._process: subprocess.Popen[bytes] | None = None
        self._shared = False
        """Whether it listens for other nodes too. Then it ends by itself some time after its stdin has ended."""
        self._pidfd = -1
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The same as `ended`, for a shared coordinator, too."""

    @property
    def pid(self) -> int | None:
        """The process id; None without a process."""
        return None if self._process is None else self._process.pid

    @property
    def runs(self) -> bool:
        """Whether this process has started it, and it has not ended."""
        return self._process is not None and not self._end.done()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._hand_over()
        finally:
            await self._stop()

    async def start(self, *flags: str, shared: bool) -> None:
        """Start it, and wait until it listens. Raises `EmbeddedCoordinatorError`."""
        process = self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - asyncio's would be killed with the loop
            isolated(_PROGRAM, *ALWAYS, "--log-format", self._log_format, *flags),
            bufsize=0,
            stdin=subprocess.PIPE if shared else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=_environ(),
            start_new_session=True,  # Ctrl-C on the terminal is for this process only
            preexec_fn=None if shared else die_with_parent(),  # noqa: PLW1509 - it makes plain system calls
        )
        self._pidfd = pidfd_of_child(process.pid, process.wait)
        asyncio.get_running_loop().add_reader(self._pidfd, self._record_end, process)
        match = _LISTENING.fullmatch(await self._read_line(process, START_WITHIN_S))
        if match is None:
            await self._stop()
            raise EmbeddedCoordinatorError(process.returncode or 0)
        self.port, self._shared, self.ended = int(match["port"]), shared, None if shared else self._end

    def _record_end(self, process: subprocess.Popen[bytes]) -> None:
        self._unwatch()
        self._end.set_result(describe_exit(process.wait()))

    def _unwatch(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)

    @staticmethod
    async def _read_line(process: subprocess.Popen[bytes], within_s: float) -> str:
        """Return its next line on stdout; empty if there is none in time."""
        assert process.stdout is not None  # noqa: S101 - it was started with stdout=PIPE
        line = in_thread(process.stdout.readline, "coordinator")
        await asyncio.wait([line], timeout=within_s)
        return line.result().decode(errors="replace") if line.done() else ""

    async def _hand_over(self) -> None:
        """Leave a shared coordinator running for as long as other nodes use it, without waiting for that."""
        process = self._process
        if process is None or not self._shared or self._end.done():
            return
        assert process.stdin is not None  # noqa: S101 - it was started with stdin=PIPE
        process.stdin.close()
        match = _SERVES_ON.fullmatch(await self._read_line(process, FAREWELL_S))
        if match is None or self._end.done():
            return  # no other node needs it, or all have had the time to receive the end of the job: `_stop` ends it
        text = (
            "the coordinator that this node brought along serves on for %s, and ends by itself after that: process %d"
        )
        log.info(text, match["jobs"], process.pid, extra=fields("coordinator_serves_on", pid=process.pid))
        self._unwatch()
        process.returncode = 0  # keeps Popen from warning that the process is still running
        self._process = None
        _close_pipes(process)

    async def _stop(self) -> None:
        """End it if it runs and was not handed over."""
        process, self._process = self._process, None
        if process is None:
            return
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if process.returncode is None:
                process.send_signal(signum)
                await asyncio.wait({self._end}, timeout=KILL_AFTER_S)
        _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
