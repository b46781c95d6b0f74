"""Runs the command of `--health-check`, and kills it with its process group if it does not end in time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from nodeclient.core.events import HealthChecked
from nodeclient.workers.local_workers import signal_group
from nodeclient.workers.process_tree import MARK_VARIABLE
from nodeclient.workers.spawn import SpawnError, WorkerCommand, spawn
from nodeclient.workers.syscalls import pidfd_open

PIPE_BYTES = 1 << 16
"""The capacity of a pipe (pipe(7)): one read after the command's end gets the rest of its output."""

LINE_BYTES = 4_096
"""How much of the end of the output is kept, more than one line that is shown."""


class HealthCommand:
    """The command. Its processes have the mark of the nodeclient, so the guard kills them if the node ends first."""

    def __init__(self, argv: Sequence[str], mark: str, submit: Callable[[HealthChecked], None]) -> None:
        """Run nothing yet; `submit` gets the end of each run."""
        self._command = WorkerCommand(tuple(argv), {**os.environ, MARK_VARIABLE: mark})
        self._submit = submit
        self.pids: set[int] = set()
        """The children that this object reaps."""

    async def run(self, within_s: float) -> None:
        """Run the command once, for `within_s` at most, and submit how it ended."""
        try:
            reading, writing = os.pipe()
            try:
                await self._watch(self._start(writing), reading, within_s)
            finally:
                os.close(reading)
        except SpawnError as error:
            self._submit(HealthChecked(None, error.message))
        except OSError as error:
            self._submit(HealthChecked(None, f"the system refused what it needs: {error.strerror}"))

    def _start(self, writing: int) -> int:
        try:
            pid = spawn(self._command, 0, writing, writing)
        finally:
            os.close(writing)
        self.pids.add(pid)
        return pid

    def _reap(self, pid: int) -> int:
        self.pids.remove(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def _watch(self, pid: int, reading: int, within_s: float) -> None:
        loop, ended, output = asyncio.get_running_loop(), asyncio.Event(), bytearray()
        os.set_blocking(reading, False)

        def read() -> None:
            chunk = b""
            with suppress(BlockingIOError):
                chunk = os.read(reading, PIPE_BYTES)
            output.extend(chunk)
            del output[:-LINE_BYTES]
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
                line = _last_line(output)
                self._submit(HealthChecked(None, f"it did not end within {within_s:g} s{line and f': {line}'}"))
                await ended.wait()  # it may hang in a driver
            exit_code = self._reap(pid)
            if in_time:
                self._submit(HealthChecked(exit_code, _last_line(output)))
        finally:
            loop.remove_reader(reading)
            loop.remove_reader(pidfd)
            os.close(pidfd)


def _last_line(output: bytearray) -> str:
    lines = output.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
