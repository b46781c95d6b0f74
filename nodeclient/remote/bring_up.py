"""Starts a coordinator and the nodes of `nodeclient up`, relays their output, and ends them.

First it visits all hosts and starts nothing: if one is not ready, no host is left with half a job. Then it starts the
coordinator, and one node on each host. A Ctrl-C here is passed on to all of them, as if each ran in this terminal.
`core.fleet` decides what follows from the end of a node.

A link (`HostLink`) is an ssh to a host, or the program itself on this host. Login shells write to the same pipes,
before the program or in its place, and an ssh may end for reasons of its own. So all that comes before the program's
answer is shown, and an end without an answer is explained by its exit code.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.ip_addresses import Endpoint, is_address
from coordinatord.runtime import __version__, logs
from coordinatord.runtime.early_signals import ENDING
from coordinatord.runtime.tasks import Tasks, in_thread
from nodeclient.config.up import UpConfig
from nodeclient.core.fleet import LOST, Fleet, why_not_ready
from nodeclient.core.leaving import LeaveSignals
from nodeclient.diagnosis.report_text import SharedReports
from nodeclient.host.ports import LOOPBACK
from nodeclient.operate.client import Client
from nodeclient.output.descriptors import READ_BYTES
from nodeclient.output.lines import LineCutter, as_lines, prefixed
from nodeclient.remote import UP_HOST
from nodeclient.remote.link_messages import Arrival, Errand, RunNode, decode_line, encode_line
from nodeclient.shell.embedded_coordinator import START_WITHIN_S, own_addresses

log = logging.getLogger(__name__)

BEAT_S = 5.0
"""How often `up` shows that it lives; after 30 s of silence hosts count it as gone."""

CLOSE_WITHIN_S = 20.0
"""How long a program may take to end after its input has ended, besides its workers' time: a coordinator takes 18 s."""

SSH = shlex.split(
    "ssh -T -o BatchMode=yes -o ControlMaster=no -o ClearAllForwardings=yes -o ConnectTimeout=10"
    " -o ServerAliveInterval=5 -o ServerAliveCountMax=4 --"
)
"""No terminal and no questions: a host whose key or user is not known yet is an error. This ssh may use a connection
that another ssh of the user shares. It shares none itself, since an ssh that does lives on after its program. It
forwards no ports, which other sessions of the user may forward already. Silence of 20 s ends it."""

ANSWER_WITHIN_S = 60.0
"""How long a host may take for an answer: a login may take 20 s, and imports take seconds on a slow file system. The
start of a coordinator gets `START_WITHIN_S` on top."""

ERRORS_WITHIN_S = 1.0
"""How long the rest of standard error may take after the end of the output."""

LINE_BYTES_MAX = 64 * 1024
"""The longest line before the answer."""

Write = Callable[[str, int, bytes], Awaitable[None]]
"""Writes lines of a host to a descriptor of this process: 1 or 2."""


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


class HostError(OperationalError):
    """A host cannot do its part; the text says why and what to do."""


class _Program(SubprocessStreamProtocol):
    """The process of a link, with its pipes: they may outlive it, and `asyncio.subprocess.Process` waits for both."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(LINE_BYTES_MAX, loop)
        self.exited: asyncio.Future[None] = loop.create_future()
        """Wait for it by `asyncio.wait`: a task that is cancelled in `await` would cancel it too."""

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set_result(None)


class HostLink:
    """The program on one host, and the connection to it."""

    def __init__(
        self,
        host: str,
        transport: asyncio.SubprocessTransport,
        program: _Program,
        write: Write,
        tasks: Tasks,
        *,
        is_here: bool,
    ) -> None:
        """Use `open`."""
        assert program.stdin and program.stdout and program.stderr  # noqa: PT018, S101 - all three are pipes
        self.host = host
        self.is_here = is_here
        self.arrival = Arrival("")
        """The program's answer; its `release` is empty until there is an answer."""
        self._transport = transport
        self._exited = program.exited
        self._stdin, self._stdout = program.stdin, program.stdout
        self._write = write
        self._errors = tasks.spawn(self._relay(program.stderr, 2), name=f"errors of {host}")

    @classmethod
    async def open(cls, host: str, program: str, write: Write, tasks: Tasks) -> HostLink:
        """Start the `program`, a Python, by ssh; on this host start our own Python, without ssh. Raises `HostError`."""
        own = "@" not in host and bool(await own_addresses(host))
        words = (sys.executable if own else program, "-P", "-m", "nodeclient", UP_HOST)  # -P: no modules of the home
        argv = words if own else (*SSH, host, shlex.join(words))
        # Settings in variables of this terminal come to all hosts as flags.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("NODECLIENT_")}
        try:
            started = await asyncio.get_running_loop().subprocess_exec(
                _Program,
                *argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=environ,
                start_new_session=True,  # Ctrl-C is for this process, which passes it on
            )
        except OSError as error:
            raise HostError(f"{host}: {argv[0]} cannot be run on this host: {error.strerror}") from error
        return cls(host, *started, write, tasks, is_here=own)

    async def ask(self, errand: Errand) -> None:
        """Send the errand, and wait for `arrival`. Raises `HostError`, after what the program has said about it."""
        self.send(encode_line(errand))
        serves = errand.workdir is None  # the program brings up the coordinator
        within_s = ANSWER_WITHIN_S + (START_WITHIN_S if serves else 0.0)
        try:
            async with asyncio.timeout(within_s):
                while line := await self._stdout.readline():
                    if (arrival := decode_line(line, Arrival)) is not None:
                        self.arrival = arrival
                        return
                    if said := line.strip():
                        await self._show(2, as_lines(said + b"\n"))
                code = await self._end()
        except (TimeoutError, ValueError):  # ValueError: a line without an end
            raise HostError(
                f"{self.host}: no answer of nodeclient within {within_s:g} s, or behind 64 KiB of other output:"
                " do files of its login shell read the input, or print without an end?"
            ) from None
        raise HostError(f"{self.host}: {why_not_ready(self.host, code, is_here=self.is_here, serves=serves)}")

    async def relay(self) -> int:
        """Relay the program's output until it ends; return its exit code, or `LOST`."""
        await self._relay(self._stdout, 1)
        return await self._end()

    def send(self, line: bytes) -> None:
        """Send a line, unless the program has ended."""
        if not self._stdin.is_closing():
            self._stdin.write(line)

    async def close(self, within_s: float) -> None:
        """Close the program's input, so that it ends, and kill it after `within_s`.

        An ssh that has given no answer is killed at once.
        """
        self._stdin.close()
        await asyncio.wait([self._exited], timeout=within_s if self.is_here or self.arrival.release else 0)
        self.kill()
        await asyncio.wait([self._exited])

    def kill(self) -> None:
        """Kill the program here, and close its pipes; an ssh breaks the connection."""
        self._transport.close()

    async def _end(self) -> int:
        """Wait for the end of the program, which has closed its output before; return the exit code, or `LOST`.

        Standard error may stay open: the ssh to a jump host, which other sessions share, may hold it for hours.
        """
        await asyncio.wait([self._errors], timeout=ERRORS_WITHIN_S)
        await asyncio.wait([self._exited])
        code = self._transport.get_returncode()
        return LOST if code is None or code < 0 else code

    async def _relay(self, stream: asyncio.StreamReader, fd: int) -> None:
        cutter = LineCutter()
        while chunk := await stream.read(READ_BYTES):
            await self._show(fd, as_lines(cutter.feed(chunk)))
        if cutter.has_unfinished:
            await self._show(fd, cutter.take_unfinished() + b"\n")

    async def _show(self, fd: int, lines: bytes) -> None:
        if lines:
            await self._write(self.host, fd, lines)
