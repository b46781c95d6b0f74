"""A coordinator that a node brings along, as its child, and that ends with it.

With `--standalone` it serves this host alone, at a port that the kernel chooses. Where the coordinator's endpoint takes
the place of torchrun's, it serves at that endpoint, on the one host that this is an address of.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import ipaddress
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout

from nodeclient.config import Endpoint, JoinConfig
from nodeclient.spawn import die_with_parent

START_WITHIN_S = 30.0
"""It takes a quarter of a second; an overloaded host gets a hundred times that."""

PATIENCE_S = 5.0
"""A coordinator of one's own that does not answer for a lease is dead, and nobody starts it again."""

FAREWELL_S = 10.0
"""How long the other nodes get to hear how the job ended: they are told at once, and two leases are for bad links."""

LOOK_AGAIN_S = 0.05
"""Between two looks at whether they have all gone."""

ENDED = frozenset({"succeeded", "failed"})
"""States of a job that nothing follows, as `GET /v1/jobs` has them."""

ALWAYS = ("--ephemeral", "--log-level", "warning")
"""What it knows ends with it, and what its node says is enough to read."""

STANDALONE = ("--host", "127.0.0.1", "--port", "0", "--outage-grace", f"{PATIENCE_S:g}")
"""For this host alone; the other kind listens where coordinatord does by itself, and is missed for as long."""

_LISTENING = re.compile(r"coordinatord listening on (?P<url>http://\S+:(?P<port>\d+))\n")


class StandaloneError(RuntimeError):
    """The coordinator of this node's own did not start; it has said why itself."""


@asynccontextmanager
async def coordinator_for(config: JoinConfig) -> AsyncIterator[tuple[JoinConfig, Collection[int]]]:
    """Bring a coordinator along where that is asked for; yield what to join with, and the ids of processes begun here.

    It lives as long as the context; at a good end of that it stays until the other nodes have heard how the job ended.
    Raises `StandaloneError`.
    """
    child = _Child(config.log_format)
    try:
        completed = await _complete(config, child)
        yield completed, child.pids
        if config.own_coordinator:
            await child.farewell()
    finally:
        await child.stop()


async def _complete(config: JoinConfig, child: _Child) -> JoinConfig:
    if config.standalone:
        await child.start(*STANDALONE)
        endpoint = Endpoint("127.0.0.1", child.port)
        return dataclasses.replace(config, coordinators=(endpoint,), join_timeout_s=PATIENCE_S)
    endpoint = config.coordinators[0]
    if not config.own_coordinator or not await _is_here(endpoint.host) or not await _is_started(child, endpoint.port):
        return config
    remark = (
        f"no coordinator listened at {endpoint}, which is this host: this node brings one along, and it ends with this "
        "node. A coordinatord of its own would survive the loss of this host"
    )
    return dataclasses.replace(config, remarks=(*config.remarks, remark))


async def _is_here(host: str) -> bool:
    """Whether all addresses of `host` are this host's own; a name of several hosts is no place for one coordinator."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the session says it
        return False
    return all(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: socket.AddressFamily, address: tuple[Any, ...]) -> bool:
    if ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        return True  # also where IPv6 is switched off, but the hosts file knows ::1
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)  # at any free port
    except OSError:
        return False
    return True


async def _is_started(child: _Child, port: int) -> bool:
    """Start a coordinator at `port`, unless somebody listens there, or another nodeclient of this host is about to.

    Raises `StandaloneError`.
    """
    with socket.socket(socket.AF_UNIX) as mark:
        try:
            # Names that begin with a null byte go with their process, and are one for all who share the ports.
            mark.bind(f"\0nodeclient brings a coordinator along at {port}")
        except OSError:
            return False
        if _is_taken(port):
            return False
        try:
            await child.start("--port", str(port))
        except StandaloneError:
            if _is_taken(port):
                return False
            raise
    return True


def _is_taken(port: int) -> bool:
    """Whether somebody listens at this port, at any address."""
    dual = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if dual else socket.AF_INET, socket.SOCK_STREAM) as probe:
        if dual:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is over is not in the way
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


class _Child:
    """A coordinatord that this process starts, or does not."""

    def __init__(self, log_format: str) -> None:
        self._log_format = log_format
        self.port = 0
        self._url = ""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pids(self) -> frozenset[int]:
        """Its process id, if it runs."""
        return frozenset() if self._process is None else frozenset({self._process.pid})

    async def start(self, *flags: str) -> None:
        """Start it, and wait until it listens. Raises `StandaloneError`."""
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "coordinatord", *ALWAYS, "--log-format", self._log_format, *flags),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        assert process.stdout is not None  # noqa: S101 - it was started with stdout=PIPE
        try:
            async with asyncio.timeout(START_WITHIN_S):
                line = (await process.stdout.readline()).decode()
        except TimeoutError:
            line = ""
        match = _LISTENING.fullmatch(line)
        if match is None:
            await self.stop()
            raise StandaloneError("the coordinator that this node brings along did not start")
        self._url, self.port = match["url"], int(match["port"])

    async def farewell(self) -> None:
        """Wait until all nodes have gone; where a job goes on without this one, they are not waited for."""
        with suppress(TimeoutError, ClientError, OSError):
            async with asyncio.timeout(FAREWELL_S), ClientSession(timeout=ClientTimeout(total=None)) as client:
                while self._process is not None:
                    if not await self._is_said_to(client):
                        return
                    await asyncio.sleep(LOOK_AGAIN_S)

    async def _is_said_to(self, client: ClientSession) -> bool:
        async with client.get(f"{self._url}/v1/jobs", headers={"Accept": "application/json"}) as answer:
            jobs: list[dict[str, Any]] = (await answer.json())["jobs"]
        return all(job["state"] in ENDED for job in jobs) and any(job["nodes"] for job in jobs)

    async def stop(self) -> None:
        """End it, if it runs."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        await self._process.wait()
        self._process = None
