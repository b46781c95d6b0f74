"""Starts a coordinator and the nodes of `nodeclient up`, relays their output, and ends them.

First it visits all hosts and starts nothing: if one is not ready, no host is left with half a job. Then it starts the
coordinator, and one node on each host. A Ctrl-C here is passed on to all of them, as if each ran in this terminal.
`core.fleet` decides what follows from the end of a node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
from collections.abc import Collection
from contextlib import suppress

from coordinatord.protocol.ip_addresses import Endpoint, is_address
from coordinatord.runtime import __version__, logs
from coordinatord.runtime.early_signals import ENDING
from coordinatord.runtime.tasks import Tasks, in_thread
from nodeclient.config.up import UpConfig
from nodeclient.core.fleet import Fleet
from nodeclient.core.leaving import LeaveSignals
from nodeclient.diagnosis.report_text import SharedReports
from nodeclient.host.ports import LOOPBACK
from nodeclient.operate.client import Client
from nodeclient.output.lines import prefixed
from nodeclient.remote.host_link import HostError, HostLink
from nodeclient.remote.link_messages import Errand, RunNode, encode_line

log = logging.getLogger(__name__)

BEAT_S = 5.0
"""How often `up` shows that it lives; after 30 s of silence hosts count it as gone."""

CLOSE_WITHIN_S = 20.0
"""How long a program may take to end after its input has ended, besides its workers' time: a coordinator takes 18 s."""


def run(config: UpConfig) -> int:
    """Run the job of these settings; return its exit code. Raises `HostError` and `RequestError`."""
    logs.configure(config.log_level, "nodeclient", config.log_format)
    for remark in config.remarks:
        log.info("%s", remark)

    return asyncio.run(_bring_up(config))


async def _bring_up(config: UpConfig) -> int:
    return await _Up(config).run()


class _Up:
    """The links of one `nodeclient up`."""

    def __init__(self, config: UpConfig) -> None:
        """Begin in the running loop."""
        self._config = config
        self._tasks = Tasks()
        self._links: list[HostLink] = []
        self._nodes: list[HostLink] = []
        """The links to nodes, once these may run."""
        self._fleet = Fleet(config.hosts, config.nodes[0], config.stop_timeout_s)
        self._signals = LeaveSignals()
        self._hurry = asyncio.get_running_loop().create_future()
        """Done once the user has sent so many signals that nothing is waited for any more."""
        self._writing = asyncio.Lock()
        """Held while lines of one host are written, so that those of two hosts do not mix."""
        self._reports = SharedReports()

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
            return self._fleet.exit_code
        finally:
            work.cancel()
            within_s = 0 if self._hurry.done() else CLOSE_WITHIN_S + self._config.stop_timeout_s
            await asyncio.gather(*(link.close(within_s) for link in self._links))
            await self._tasks.cancel()

    def _on_signal(self, signum: int, work: asyncio.Task[int]) -> None:
        """Pass a signal on to all nodes, as if each were in this terminal; before there are any, end."""
        if not self._signals.counts(signum, asyncio.get_running_loop().time()):
            return
        waits_for_nodes = self._fleet.record_signal(signum)
        self._pass_on(signum)
        if not self._nodes:
            work.cancel()
        elif not waits_for_nodes and not self._hurry.done():
            self._hurry.set_result(None)
            for link in self._nodes:
                link.kill()

    def _pass_on(self, signum: int) -> None:
        for link in self._nodes:
            link.send(f"{signal.Signals(signum).name}\n".encode())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for link in self._links:
                link.send(b"\n")

    async def _work(self) -> int:
        starts = await self._start()
        for link, start in zip(self._nodes, starts, strict=True):
            link.send(encode_line(start))  # at once, so that no signal reaches a node before its start
        await asyncio.gather(*map(self._attend, self._nodes))
        return self._fleet.exit_code

    async def _attend(self, link: HostLink) -> None:
        """Wait until a node ends, and do what follows from its end."""
        loop, fleet, exit_code = asyncio.get_running_loop(), self._fleet, await link.relay()
        if text := fleet.record_end(link.host, exit_code, loop.time()):
            log.warning("%s: %s", link.host, text)
        if fleet.stop_at is not None:
            loop.call_at(fleet.stop_at, self._time_out)

    def _time_out(self) -> None:
        if self._fleet.time_out():
            log.warning("too few hosts are left for a round: the others end")
            self._pass_on(signal.SIGTERM)

    async def _start(self) -> list[RunNode]:
        """See that all hosts are ready, start the coordinator, and return the command of each of `_nodes`.

        Raises `HostError` and `RequestError`, and then has started no node.
        """
        config = self._config
        ready = await self._visit_all(config.hosts, Errand(str(config.workdir)))
        if config.coordinators:
            token = await in_thread(Client(config.coordinators, config.access).node_token, "token")
            endpoints = [",".join(map(str, config.coordinators))] * len(config.hosts)
        else:
            [server] = await self._visit_all([config.coordinator_host], Errand(workdir=None))
            token, port = server.arrival.token, server.arrival.port
            endpoints = [str(Endpoint(_address(server, link), port)) for link in ready]
            where = Endpoint(LOOPBACK, port)
            log.info("the coordinator is on %s; there: nodeclient status --coord %s", server.host, where)
        self._nodes = ready
        return [RunNode(arguments(config, rank, endpoint), token) for rank, endpoint in enumerate(endpoints)]

    async def _visit_all(self, hosts: Collection[str], errand: Errand) -> list[HostLink]:
        """Begin a link to each of these hosts. If some are not ready, log why and raise `HostError`."""
        visited = await asyncio.gather(*(self._visit(host, errand) for host in hosts), return_exceptions=True)
        errors = [visit for visit in visited if isinstance(visit, BaseException)]
        for error in errors:
            if not isinstance(error, HostError):
                raise error
            log.error("%s", error)
        if errors:
            raise HostError(f"nothing was started, since {len(errors)} of {len(hosts)} hosts are not ready: see above")
        return [visit for visit in visited if isinstance(visit, HostLink)]

    async def _visit(self, host: str, errand: Errand) -> HostLink:
        """Begin a link to a host, and see that it can do its part. Raises `HostError`."""
        link = await HostLink.open(host, self._config.remote_python, self._write, self._tasks)
        self._links.append(link)
        await link.ask(errand)
        if (release := link.arrival.release) != __version__:
            raise HostError(f"{host}: it has release {release}, and this host {__version__}: install the same on both")
        if why := link.arrival.problem:
            raise HostError(
                f"{host}: its directory {errand.workdir} cannot be entered ({why}): share it, copy it there, or name"
                " another one by --workdir"
            )
        return link

    async def _write(self, host: str, fd: int, lines: bytes) -> None:
        """Write lines of a host to a descriptor of this process; without a reader they are lost.

        The report on a round is written once, though each node shows it.
        """
        shown = prefixed(f"{host}: ".encode(), self._reports.without_repeated((host, fd), lines))
        async with self._writing:
            if shown and not self._hurry.done():
                written = in_thread(lambda: _write_all(fd, shown), "output")
                await asyncio.wait([written, self._hurry], return_when=asyncio.FIRST_COMPLETED)


def arguments(config: UpConfig, rank: int, endpoint: str) -> tuple[str, ...]:
    """Return the arguments of the node on the host with this number, for a coordinator at `endpoint`."""
    slots = list(config.hosts.values())[rank]
    return (
        "join",
        f"--coord={endpoint}",
        *config.arguments,
        *([f"--node-rank={rank}"] if rank < config.nodes[1] else []),  # more nodes are spares
        *([f"--nproc-per-node={slots}"] if slots is not None else []),
        "--",
        *config.command,
    )


def _address(server: HostLink, link: HostLink) -> str:
    """Return the address at which the host of `link` reaches the coordinator on the host of `server`.

    The sshd of one of them has seen it. Raises `HostError` if that sshd was not reached by TCP.
    """
    if server.is_here and link.is_here:
        return LOOPBACK
    host, address = (link.host, link.arrival.peer) if server.is_here else (server.host, server.arrival.address)
    if not is_address(address):
        raise HostError(
            f"{host}: its sshd does not say where the coordinator can be reached: start one, and see --coord"
        )
    return address


def _write_all(fd: int, data: bytes) -> None:
    with suppress(OSError):
        while data:
            select.select([], [fd], [])  # the terminal may be non-blocking, by the will of another program
            data = data[os.write(fd, data) :]
