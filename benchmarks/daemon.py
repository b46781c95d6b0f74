"""A coordinatord in a process of its own, and what it costs its host; what is done to it is not in here."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HEARTBEAT_S = 60
"""Granted to the nodes, so that no heartbeat falls into a measurement: what they cost is another figure."""

START_WITHIN_S = 30.0
STOP_WITHIN_S = 30.0
"""Both are fractions of a second on an idle host."""

COMPLAINT_BYTES = 2_000
"""How much of the end of its log is shown when it fails."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
"""The unit of processor time in /proc, see proc_pid_stat(5): 10 ms."""


class DaemonError(Exception):
    """The coordinatord under test did not start, or did not end well; the text holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A coordinatord that serves."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """Return the processor time that it has used so far, in seconds; it has one thread that works."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        user, system = fields[11:13]
        return (int(user) + int(system)) / TICKS_PER_S

    def resident_kib(self) -> int:
        """Return the memory that it occupies, in KiB, see VmRSS in proc_pid_status(5)."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@asynccontextmanager
async def coordinatord() -> AsyncIterator[Daemon]:
    """Run a coordinatord on a free port of the loopback while the context lasts. Raises `DaemonError`.

    It logs as it does by default, into a file that nobody reads unless it fails.
    """
    command = (sys.executable, "-m", "coordinatord", "--host", "127.0.0.1", "--port", "0")
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as state:
        process = await asyncio.create_subprocess_exec(
            *(*command, "--state-dir", state, "--heartbeat", str(HEARTBEAT_S)),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
        try:
            yield Daemon(await _read_url(process, log), process.pid)
        finally:
            await _end(process)
        if process.returncode != 0:
            raise DaemonError(f"coordinatord exited with {process.returncode}: {_tail(log)}")


async def _read_url(process: asyncio.subprocess.Process, log: IO[bytes]) -> str:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    async with asyncio.timeout(START_WITHIN_S):
        line = await process.stdout.readline()
    if b" listening on " not in line:
        raise DaemonError(f"coordinatord did not start: {_tail(log)}")
    return line.decode().split()[-1]


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_WITHIN_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _tail(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - COMPLAINT_BYTES))
    return log.read().decode(errors="replace").strip() or "it logged nothing"
