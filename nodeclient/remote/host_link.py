"""The end of a link here: an ssh to a host, or the same program without ssh for this host."""

from __future__ import annotations

import asyncio
import os
import shlex
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.text import clip
from coordinatord.runtime.tasks import Tasks
from nodeclient.core.fleet import LOST, why_not_ready
from nodeclient.output.descriptors import READ_BYTES
from nodeclient.output.lines import LineCutter, as_lines, prefixed
from nodeclient.remote import UP_HOST
from nodeclient.remote.link_messages import LINE_BYTES_MAX, decode_line, encode_line

SSH = (
    "ssh",
    "-T",
    *("-o", "BatchMode=yes"),
    *("-o", "ControlMaster=no"),
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=4"),
    "--",
)
"""No terminal and no questions: a host whose key or user is not known yet is an error. A connection that the user
shares already is used, but this one is shared with nobody, since the ssh that shares it would live on. Ports that the
user forwards in other sessions are not forwarded again. Silence of 20 s ends it."""

ANSWER_WITHIN_S = 60.0
"""How long a host may take for an answer: a login may take 20 s, and the imports some on a slow file system."""

HELD_BYTES_MAX = 4096
"""How much of the end of its output is kept of a program that is not ready: it says why."""

OWN_PREFIX = "NODECLIENT_"
"""The beginning of the variables with settings. Those of this terminal come to all hosts as flags."""

Write = Callable[[int, bytes], Awaitable[None]]
"""Writes lines to a descriptor of this process: 1 or 2."""

Answer = TypeVar("Answer", bound=Struct)
Pipe = TypeVar("Pipe", asyncio.StreamReader, asyncio.StreamWriter)


class HostError(OperationalError):
    """A host cannot do its part; the text says why and what to do."""


class HostLink:
    """The program on one host, and the connection to it."""

    def __init__(self, host: str, program: str, process: Process, write: Write, tasks: Tasks) -> None:
        """Use `open`."""
        self.host = host
        self._program = program
        self._process = process
        self._write = write
        self._said: bytes | None = b""
        """The end of its output while it is not ready; None from then on."""
        self._errors = tasks.spawn(self._relay(_opened(process.stderr), 2), name=f"errors of {host}")

    @classmethod
    async def open(cls, host: str, program: str, write: Write, tasks: Tasks, *, is_here: bool) -> HostLink:
        """Start the program by ssh, or without it on this host. Raises `HostError`."""
        words = (program, "-P", "-m", "nodeclient", UP_HOST)  # -P: the home directory has none of our modules
        argv = words if is_here else (*SSH, host, shlex.join(words))
        environ = {name: value for name, value in os.environ.items() if not name.startswith(OWN_PREFIX)}
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=LINE_BYTES_MAX,
                env=environ,
                start_new_session=True,  # Ctrl-C is for this process, which passes it on
            )
        except OSError as error:
            raise HostError(f"{host}: {argv[0]} cannot be run on this host: {error.strerror}") from error
        return cls(host, program, process, write, tasks)

    async def ask(self, message: Struct, kind: type[Answer]) -> Answer:
        """Send a message, and return its answer. Raises `HostError`."""
        self.send(encode_line(message))
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                while line := await _opened(self._process.stdout).readline():
                    answer: Answer | None = decode_line(line, kind)
                    if answer is not None:
                        return answer
                    if line.strip():
                        await self._show(2, line)
                await self._errors
        except TimeoutError:
            raise HostError(f"{self.host}: {self._program} has not answered within {ANSWER_WITHIN_S:g} s") from None
        except ValueError:
            raise HostError(f"{self.host}: it has written a line of more than {LINE_BYTES_MAX} bytes") from None
        code = await self._exit_code()
        if self._said is None:
            raise HostError(f"{self.host}: it has ended with exit code {code}, for the reason above")
        said = clip(self._said.decode(errors="replace").strip().replace("\n", " / "))
        raise HostError(f"{self.host}: {why_not_ready(self.host, code, said, self._program)}")

    async def be_ready(self) -> None:
        """Show what the program has said, and from now on each line as it comes."""
        said, self._said = self._said or b"", None
        await self._show(2, said)

    async def run(self, task: Struct) -> int:
        """Give the program its task, and relay its output until it ends; return its exit code, or `LOST`."""
        self.send(encode_line(task))
        await asyncio.gather(self._errors, self._relay(_opened(self._process.stdout), 1))
        return await self._exit_code()

    def send(self, line: bytes) -> None:
        """Send a line, unless the program has ended."""
        stdin = _opened(self._process.stdin)
        if not stdin.is_closing():
            stdin.write(line)

    async def close(self, within_s: float) -> None:
        """End the program's input, on which it ends by itself, and wait for that. Kill it if not ready, or too slow."""
        _opened(self._process.stdin).close()
        if self._said is not None:
            self._kill()
        try:
            async with asyncio.timeout(within_s):
                await self._exit_code()
        except TimeoutError:
            self._kill()
            await self._exit_code()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _exit_code(self) -> int:
        code = await self._process.wait()
        return code if code >= 0 else LOST

    async def _relay(self, stream: asyncio.StreamReader, fd: int) -> None:
        cutter = LineCutter()
        while chunk := await stream.read(READ_BYTES):
            await self._show(fd, as_lines(cutter.feed(chunk)))
        if cutter.has_unfinished:
            await self._show(fd, cutter.take_unfinished() + b"\n")

    async def _show(self, fd: int, lines: bytes) -> None:
        if self._said is not None:
            self._hold(lines)
        elif lines:
            await self._write(fd, prefixed(f"{self.host}: ".encode(), lines))

    def _hold(self, lines: bytes) -> None:
        self._said = ((self._said or b"") + lines)[-HELD_BYTES_MAX:]


def _opened(pipe: Pipe | None) -> Pipe:
    assert pipe is not None  # noqa: S101 - all three are pipes
    return pipe
