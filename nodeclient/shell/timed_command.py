"""Runs a command without blocking the event loop, for a limited time.

The rest of its process group is killed when the command ends, or when its time is over.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec import Struct, json
from msgspec.structs import replace

from coordinatord.protocol.schema import ERRORS
from nodeclient.workers.local_workers import signal_group
from nodeclient.workers.process_tree import MARK_VARIABLE
from nodeclient.workers.spawn import SpawnError, WorkerCommand, pidfd_of_child, spawn

PIPE_BYTES = 1 << 16
"""The capacity of a pipe (pipe(7)): one read after the command's end gets the rest of its output."""

LINES_BYTES = 1 << 18
"""How much of the end of the output is kept: more than a line with the facts of a host with a thousand interfaces."""

KILLED_WITHIN_S = 5.0
"""The longest wait for the end of a command that was killed: it may hang in a driver."""

Answer = TypeVar("Answer")


class CommandEnd(Struct, frozen=True):
    """How a command ended, and the end of its output."""

    exit_code: int | None
    """The exit code as in `subprocess`; None if it could not be started or did not end in time."""
    problem: str
    """Why there is no exit code; empty if there is one."""
    lines: tuple[str, ...] = ()
    """The last lines of its output that are not empty, with any characters."""

    @property
    def text(self) -> str:
        """The problem, if there is one, and the last line."""
        return ": ".join(filter(None, (self.problem, *self.lines[-1:])))

    def answer(self, kind: type[Answer]) -> Answer | None:
        """Return the last line that is JSON of this kind, or None. Later lines, and a failure, do not matter."""
        for line in reversed(self.lines):
            with suppress(*ERRORS):
                return json.decode(line, type=kind)
        return None


class TimedCommand:
    """Runs one command at a time, with the mark of the nodeclient: if the node ends first, the guard kills it."""

    def __init__(self, mark: str) -> None:
        self._mark = {MARK_VARIABLE: mark}
        self._ended: asyncio.Future[int] | None = None
        """The exit code of the last command; None before the first."""
        self.pids: set[int] = set()
        """The children that this object reaps."""

    async def run(self, command: WorkerCommand, within_s: float) -> CommandEnd:
        """Run a command, for `within_s` seconds at most; return how it ended.

        A killed command may hang in a driver. This does not wait for it, and starts no other one until it has ended.
        """
        if self.pids:
            return CommandEnd(None, "the one before still hangs, although it was killed: see the kernel's log (dmesg)")
        try:
            reading, writing = os.pipe()
            try:
                return await self._watch(self._start(command, writing), reading, within_s)
            finally:
                os.close(reading)
        except SpawnError as error:
            return CommandEnd(None, str(error))
        except OSError as error:
            return CommandEnd(None, f"the system refused what it needs: {error.strerror}")

    def kill(self) -> None:
        """Kill what runs, with its process group."""
        for pid in self.pids:
            signal_group(pid, signal.SIGKILL)

    async def await_end(self) -> None:
        """Wait until a command that was killed has ended, `KILLED_WITHIN_S` at most."""
        if self._ended is not None:
            await asyncio.wait([self._ended], timeout=KILLED_WITHIN_S)

    def _start(self, command: WorkerCommand, writing: int) -> int:
        try:
            marked = replace(command, environ={**command.environ, **self._mark})
            return spawn(marked, local_rank=0, stdout=writing, stderr=writing)  # the rank is only for errors
        finally:
            os.close(writing)

    async def _watch(self, pid: int, reading: int, within_s: float) -> CommandEnd:
        pidfd = pidfd_of_child(pid, partial(os.waitpid, pid, 0))
        loop, output = asyncio.get_running_loop(), bytearray()
        self.pids.add(pid)
        self._ended = ended = loop.create_future()
        os.set_blocking(reading, False)

        def read() -> None:
            chunk = b""
            with suppress(BlockingIOError):
                chunk = os.read(reading, PIPE_BYTES)
            output.extend(chunk)
            del output[:-LINES_BYTES]
            if not chunk:
                loop.remove_reader(reading)

        def reap() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            signal_group(pid, signal.SIGKILL)  # before it is reaped: after that, another group may have this number
            self.pids.remove(pid)
            ended.set_result(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        loop.add_reader(pidfd, reap)
        loop.add_reader(reading, read)
        try:
            await asyncio.wait([ended], timeout=within_s)
            read()
        finally:
            loop.remove_reader(reading)
        if ended.done():
            return CommandEnd(ended.result(), "", _lines(output))
        self.kill()
        return CommandEnd(None, f"it did not end within {within_s:g} s", _lines(output))


def _lines(output: bytearray) -> tuple[str, ...]:
    return tuple(line.strip() for line in output.decode(errors="replace").split("\n") if line.strip())
