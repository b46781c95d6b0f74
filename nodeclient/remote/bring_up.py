"""Starts a coordinator and the nodes of `nodeclient up`, relays their output, and ends them."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import sys
from contextlib import suppress

from msgspec import Struct

from coordinatord.runtime import __version__, logs
from coordinatord.runtime.early_signals import ENDING
from coordinatord.runtime.tasks import Tasks, in_thread
from nodeclient.access.endpoint import Endpoint, is_address
from nodeclient.access.secured_attempt import AccessError, token_for_node
from nodeclient.config.up import UpConfig
from nodeclient.core.fleet import Fleet
from nodeclient.host.ports import LOOPBACK
from nodeclient.remote.host_link import HostError, HostLink
from nodeclient.remote.link_messages import BEAT_S, Arrival, Errand, RunNode, ServeCoordinator, Serving
from nodeclient.shell.embedded_coordinator import is_here

log = logging.getLogger(__name__)

CLOSE_WITHIN_S = 20.0
"""How long a program may take to end after its input, beside the time for its workers: the coordinator takes 18 s at
most."""


def run(config: UpConfig) -> int:
    """Run the job of these settings; return its exit code. Raises `HostError` and `AccessError`."""
    logs.configure(config.log_level, "nodeclient", config.log_format)
    for remark in config.remarks:
        log.info("%s", remark)

    async def bring_up() -> int:
        return await _Up(config).run()

    return asyncio.run(bring_up())


class _Up:
    """The links of one `nodeclient up`."""

    def __init__(self, config: UpConfig) -> None:
        """Begin in the running loop."""
        self._config = config
        self._tasks = Tasks()
        self._links: list[HostLink] = []
        self._nodes: list[HostLink] = []
        """The links to nodes, once these may run."""
        self._signum = 0
        """The signal that came before; 0 without one."""
        self._writing = asyncio.Lock()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The exit code of the job."""

    async def run(self) -> int:
        """Start everything, wait for the end of all nodes, and return the exit code."""
        loop = asyncio.get_running_loop()
        work = loop.create_task(self._work())
        for signum in ENDING:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                loop.add_signal_handler(signum, self._on_signal, signum, work)
        self._tasks.spawn(self._beat(), name="beats")
        try:
            return await self._tasks.guard(work)
        except asyncio.CancelledError:
            return 128 + self._signum
        finally:
            work.cancel()
            within_s = CLOSE_WITHIN_S + self._config.stop_timeout_s
            await asyncio.gather(*(link.close(within_s) for link in self._links))
            await self._tasks.cancel()

    def _on_signal(self, signum: int, work: asyncio.Task[int]) -> None:
        """Pass a signal on to all nodes, as if each were in this terminal; before there are any, end."""
        if self._nodes:
            self._pass_on(signum)
        else:
            self._signum = signum
            work.cancel()

    def _pass_on(self, signum: int) -> None:
        for link in self._nodes:
            link.send(f"{signal.Signals(signum).name}\n".encode())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for link in self._links:
                link.send(b"\n")

    async def _work(self) -> int:
        tasks = await self._start()
        fleet = Fleet([link.host for link in self._nodes], self._config.nodes[0], self._config.stop_timeout_s)
        for link, task in zip(self._nodes, tasks, strict=True):
            self._tasks.spawn(self._attend(fleet, link, task), name=f"node on {link.host}")
        return await self._ended

    async def _attend(self, fleet: Fleet, link: HostLink, task: RunNode) -> None:
        """Run a node until it ends, and do what follows from its end."""
        loop, exit_code = asyncio.get_running_loop(), await link.run(task)
        if text := fleet.record_end(link.host, exit_code, loop.time()):
            log.warning("%s: %s", link.host, text)
        if fleet.stop_at is not None:
            loop.call_at(fleet.stop_at, self._give_up, fleet)
        if not fleet.live:
            self._ended.set_result(fleet.exit_code)

    def _give_up(self, fleet: Fleet) -> None:
        if fleet.live and fleet.gives_up(asyncio.get_running_loop().time()):
            log.warning("too few hosts are left for a round: the others end")
            self._pass_on(signal.SIGTERM)

    async def _start(self) -> list[RunNode]:
        """See that all hosts are ready, start the coordinator, and return the tasks of `_nodes`.

        Raises `HostError` and `AccessError`, and then has started no node.
        """
        config = self._config
        visits = [self._visit(host.name, str(config.workdir)) for host in config.hosts]
        if not config.coordinators:
            visits.append(self._visit(config.coordinator_host, "/"))
        visited = await asyncio.gather(*visits, return_exceptions=True)
        errors = [error for error in visited if isinstance(error, BaseException)]
        for error in errors:
            if not isinstance(error, HostError):
                raise error
            log.error("%s", error)
        if errors:
            raise HostError(
                f"nothing was started, since {len(errors)} of {len(visited)} hosts are not ready: see above"
            )
        ready = [visit for visit in visited if isinstance(visit, _Visit)]
        if config.coordinators:
            token = await in_thread(lambda: _token(config), "token")
            endpoints = [",".join(map(str, config.coordinators))] * len(config.hosts)
        else:
            seat = ready.pop()
            serving = await seat.link.ask(ServeCoordinator(), Serving)
            token = serving.token
            endpoints = [str(Endpoint(seat.address_for(visit), serving.port)) for visit in ready]
            where = Endpoint(LOOPBACK, serving.port)
            log.info("the coordinator is on %s; there: nodeclient status --coord %s", config.coordinator_host, where)
        self._nodes = [visit.link for visit in ready]
        return [RunNode(arguments(config, rank, endpoint), token) for rank, endpoint in enumerate(endpoints)]

    async def _visit(self, host: str, workdir: str) -> _Visit:
        """Begin a link to a host; see that it can do its part. Raises `HostError`."""
        own = "@" not in host and await is_here(host)
        program = sys.executable if own else self._config.remote_python
        link = await HostLink.open(host, program, self._write, self._tasks, is_here=own)
        self._links.append(link)
        arrival = await link.ask(Errand(workdir), Arrival)
        if arrival.release != __version__:
            raise HostError(
                f"{host}: it has release {arrival.release}, and this host {__version__}: install the same on both"
            )
        if arrival.problem:
            raise HostError(f"{host}: {arrival.problem}")
        await link.be_ready()
        return _Visit(link, arrival, own)

    async def _write(self, fd: int, lines: bytes) -> None:
        """Write lines to a descriptor of this process; without a reader they are lost, and the job goes on."""
        async with self._writing:
            with suppress(OSError):
                await in_thread(lambda: _write_all(fd, lines), "output")


class _Visit(Struct, frozen=True):
    """A host that is ready."""

    link: HostLink
    arrival: Arrival
    is_here: bool

    def address_for(self, other: _Visit) -> str:
        """Return the address at which another host reaches this one, by what the sshd of one of them has seen.

        Raises `HostError` if that sshd was not reached by TCP.
        """
        if self.is_here and other.is_here:
            return LOOPBACK
        asked, address = (other, other.arrival.peer) if self.is_here else (self, self.arrival.address)
        if not is_address(address):
            raise HostError(
                f"{asked.link.host}: its sshd does not say at which address the coordinator can be reached: start a"
                " coordinatord, and name it by --coord"
            )
        return address


def arguments(config: UpConfig, rank: int, endpoint: str) -> tuple[str, ...]:
    """Return the arguments of the node on the host with this number, for a coordinator at `endpoint`."""
    slots = config.hosts[rank].slots
    return (
        "join",
        f"--coord={endpoint}",
        *config.arguments,
        *([f"--node-rank={rank}"] if rank < config.nodes[1] else []),
        *([f"--nproc-per-node={slots}"] if slots is not None else []),
        "--",
        *config.command,
    )


def _token(config: UpConfig) -> str:
    """Return the token that nodes have to show, from the first coordinator that answers. Raises `AccessError`."""
    *others, last = config.coordinators
    for endpoint in others:
        with suppress(AccessError):
            return token_for_node(config.access, endpoint)
    return token_for_node(config.access, last)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        select.select([], [fd], [])  # the terminal may be non-blocking, by the will of another program
        data = data[os.write(fd, data) :]
