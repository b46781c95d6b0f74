"""Runs a command beside everything else, and kills it with its process group if it does not end in time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from nodeclient.workers.local_workers import signal_group
from nodeclient.workers.process_tree import MARK_VARIABLE
from nodeclient.workers.spawn import SpawnError, WorkerCommand, spawn
from nodeclient.workers.syscalls import pidfd_open

PIPE_BYTES = 1 << 16
"""The capacity of a pipe (pipe(7)): one read after the command's end gets the rest of its output."""

LINES_BYTES = 4_096
"""How much of the end of the output is kept: more than the lines that are used."""


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


class TimedCommand:
    """A command that runs at times. It has the mark of the nodeclient, so the guard kills it if the node ends first."""

    def __init__(self, mark: str) -> None:
        """Run nothing yet."""
        self._mark = {MARK_VARIABLE: mark}
        self.pids: set[int] = set()
        """The children that this object reaps."""

    async def run(self, command: WorkerCommand, within_s: float, submit: Callable[[CommandEnd], None]) -> None:
        """Run a command, and submit how it ended, after `within_s` seconds at most; return when it has ended."""
        try:
            reading, writing = os.pipe()
            try:
                await self._watch(self._start(command, writing), reading, within_s, submit)
            finally:
                os.close(reading)
        except SpawnError as error:
            submit(CommandEnd(None, error.message))
        except OSError as error:
            submit(CommandEnd(None, f"the system refused what it needs: {error.strerror}"))

    def kill(self) -> None:
        """Kill what runs, with its process group; `run` returns once that has ended."""
        for pid in self.pids:
            signal_group(pid, signal.SIGKILL)

    def _start(self, command: WorkerCommand, writing: int) -> int:
        try:
            pid = spawn(replace(command, environ={**command.environ, **self._mark}), 0, writing, writing)
        finally:
            os.close(writing)
        self.pids.add(pid)
        return pid

    def _reap(self, pid: int) -> int:
        self.pids.remove(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def _watch(self, pid: int, reading: int, within_s: float, submit: Callable[[CommandEnd], None]) -> None:
        loop, ended, output = asyncio.get_running_loop(), asyncio.Event(), bytearray()
        os.set_blocking(reading, False)

        def read() -> None:
            chunk = b""
            with suppress(BlockingIOError):
                chunk = os.read(reading, PIPE_BYTES)
            output.extend(chunk)
            del output[:-LINES_BYTES]
            if not chunk:
                loop.remove_reader(reading)

        pidfd = pidfd_open(pid)
        loop.add_reader(pidfd, ended.set)
        loop.add_reader(reading, read)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), within_s)
            in_time = ended.is_set()
            read()
            signal_group(pid, signal.SIGKILL)
            if not in_time:
                submit(CommandEnd(None, f"it did not end within {within_s:g} s", _lines(output)))
                await ended.wait()  # it may hang in a driver
            exit_code = self._reap(pid)
            if in_time:
                submit(CommandEnd(exit_code, "", _lines(output)))
        finally:
            loop.remove_reader(reading)
            loop.remove_reader(pidfd)
            os.close(pidfd)


def _lines(output: bytearray) -> tuple[str, ...]:
    return tuple(line.strip() for line in output.decode(errors="replace").split("\n") if line.strip())
