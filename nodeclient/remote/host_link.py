"""The near end of a link, where `nodeclient up` runs: an ssh to another host, or the program itself on this host.

Login shells write to the same pipes, before the program or in its place, and an ssh may end for reasons of its own. So
all that comes before the program's answer is shown, and an end without an answer is explained by its exit code.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import Awaitable, Callable

from coordinatord.protocol.errors import OperationalError
from coordinatord.runtime.tasks import Tasks
from nodeclient.core.fleet import LOST, why_not_ready
from nodeclient.output.descriptors import READ_BYTES
from nodeclient.output.lines import LineCutter, as_lines
from nodeclient.remote import UP_HOST
from nodeclient.remote.link_messages import Arrival, Errand, decode_line, encode_line
from nodeclient.shell.embedded_coordinator import START_WITHIN_S, own_addresses

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
