"""Workers that write through an `Output`, and a screen that is read only when a test wants it to be."""

import asyncio
import os
import re
import secrets
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from nodeclient.output.log_paths import LogPaths
from nodeclient.output.output import Output, WorkerStreams
from nodeclient.output.output_settings import OutputSettings
from nodeclient.workers.leftover_processes import EndedWorker
from nodeclient.workers.local_workers import LocalWorkers
from nodeclient.workers.process_tree import kill_marked
from nodeclient.workers.spawn import WorkerCommand
from tests.support.programs import TIMEOUT_S, wait_until

PRELUDE = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
def out(data): write(1, data)
def err(data): write(2, data)
def write(fd, data):
    data = data if isinstance(data, bytes) else data.encode()
    while data:
        data = data[os.write(fd, data):]
"""
"""What each worker's statements can use."""


class Screen:
    """The other end of a node's output: a pipe or a terminal, of which the bytes arrive as they were written."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        self.reading, self.fd = os.openpty() if is_terminal else os.pipe()
        if is_terminal:
            tty.setraw(self.fd)
            termios.tcsetwinsize(self.fd, (24, 80))
        self.data = b""
        self._reader: threading.Thread | None = None

    def start_reading(self) -> None:
        """Read from now on, until the end."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    async def shows(self, pattern: bytes) -> None:
        """Wait until this has been written."""
        what = f"{pattern!r} on the screen"
        await asyncio.to_thread(wait_until, what, lambda: re.search(pattern, self.data, re.DOTALL))

    def finish(self) -> bytes:
        """Read to the end, and return all of it."""
        self.leave()
        if self._reader is None:
            self.start_reading()
        assert self._reader
        self._reader.join(TIMEOUT_S)
        assert not self._reader.is_alive(), "somebody still holds the other end"
        os.close(self.reading)
        return self.data

    def leave(self) -> None:
        """Close the end that is written to."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _read(self) -> None:
        chunks = []
        try:
            while chunk := os.read(self.reading, 65_536):
                chunks.append(chunk)
                if len(chunks) < 1_000:  # what is looked at while it grows is short
                    self.data = b"".join(chunks)
        except OSError:  # the end of a terminal
            pass
        self.data = b"".join(chunks)


class Gate:
    """A FIFO, at which a worker waits for the test."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        self.wait = f"open({str(path)!r}).read()"
        """What a worker runs to wait."""

    async def open(self) -> None:
        """Let the worker go on."""
        await asyncio.to_thread(self._path.write_text, "go")


class Stage:
    """One node's output and its workers."""

    def __init__(self, settings: OutputSettings, stdout: Screen, stderr: Screen) -> None:
        self.complaints: list[str] = []
        self.stdout, self.stderr = stdout, stderr
        self.output = Output(settings, "gpu1.example", "trainer", self.complaints.append, (stdout.fd, stderr.fd))
        self.exits: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self.mark = secrets.token_hex(16)
        self.workers = LocalWorkers(self.mark, lambda *ended: self.exits.put_nowait(ended), self._leave)
        self.streams: list[WorkerStreams] = []
        self.round = 0

    async def _leave(self, ended: Sequence[EndedWorker]) -> None:
        for worker in ended:
            kill_marked(worker.mark)

    def start(self, *scripts: str, first_rank: int = 0, several_hosts: bool = False) -> None:
        """Start a worker for each script, which is Python below `PRELUDE`."""
        self.round += 1
        ranks = range(first_rank, first_rank + len(scripts))
        commands = [
            WorkerCommand(
                (sys.executable, "-I", "-S", "-c", PRELUDE + script), {**os.environ, "RANK": str(rank), "LANG": "C"}
            )
            for rank, script in zip(ranks, scripts, strict=True)
        ]
        with self.output.begin(LogPaths("job", "run", self.round), ranks, several_hosts=several_hosts) as streams:
            self.streams = streams
            screens = [stream.terminal_variables for stream in streams]
            specs = [
                replace(command, environ={**command.environ, **screen})
                for command, screen in zip(commands, screens, strict=True)
            ]
            self.workers.start(specs, streams)

    async def ended(self) -> dict[int, int]:
        """Wait until all workers have ended; return their exit codes by local rank."""
        return dict([await self.exits.get() for _ in self.streams])

    async def run(self, *scripts: str, several_hosts: bool = False) -> dict[int, int]:
        """Start workers, wait for them, and sweep."""
        self.start(*scripts, several_hosts=several_hosts)
        codes = await self.ended()
        await self.workers.sweep()
        return codes

    async def close(self) -> None:
        """End the workers, and then the output."""
        await self.workers.sweep()
        await self.output.close()


@asynccontextmanager
async def on_stage(
    settings: OutputSettings | None = None,
    *,
    is_terminal: bool = False,
    stdout: Screen | None = None,
    is_read: bool = True,
) -> AsyncIterator[Stage]:
    """Yield a stage whose stdout and stderr are one screen that is read, unless there is another one for stdout."""
    async with asyncio.timeout(TIMEOUT_S):
        screen = Screen(is_terminal=is_terminal)
        stage = Stage(settings or OutputSettings(), stdout or screen, screen)
        if is_read:
            screen.start_reading()
        try:
            yield stage
        finally:
            await stage.close()


def by_rank(data: bytes, ranks: Sequence[int], prefix: str = "[rank {}] ") -> dict[int, list[bytes]]:
    """Return the lines of each rank without their prefixes; fail on a line that has none."""
    starts = {prefix.format(rank).encode(): rank for rank in ranks}
    found: dict[int, list[bytes]] = {rank: [] for rank in ranks}
    assert data.endswith(b"\n")
    for line in data.split(b"\n")[:-1]:
        start = line[: line.index(b"]") + 2]
        found[starts[start]].append(line[len(start) :])
    return found


def log_file(log_dir: Path, rank: int, name: str, number: int = 1) -> bytes:
    return (log_dir / "job" / "run" / f"round_{number}" / str(rank) / f"{name}.log").read_bytes()
