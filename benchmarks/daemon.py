"""A server in a process of its own, mostly a coordinatord: what it costs its host, and has made durable.

It is only observed. Beside it are the processes that play its nodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from link import Access
from tables import BenchmarkError

from coordinatord.core.rounds.values.records import NodeLost, RoundStarted
from coordinatord.runtime.pinned_tls import pinned_context
from coordinatord.store.directory import DATABASE
from coordinatord.store.etcd.replica import FOLDER, REPLICA
from tests.support.etcd import PROGRAM, EtcdCluster

NO_HEARTBEAT_S = 60.0
"""The heartbeat for nodes whose heartbeats must not fall into a measurement: their cost is another figure."""

LEASE_S = 60.0
"""The lease at an etcd: the daemon shares the host with all nodes, and is to lead whatever they take."""

START_WITHIN_S = 120.0
STOP_WITHIN_S = 120.0
"""The limit of its end, which takes a fraction of a second on an idle host."""

COMPLAINT_BYTES = 2_000
"""How much of the end of its log is shown when it fails."""

LISTENING = re.compile(rb" listening on (\S+)")
"""The line on standard output with the server's address."""

CHANGES_AT = 8
"""The offset of the counter of transactions, of 4 bytes, in the index beside SQLite's log: `iChange` in its WAL-mode
file format."""

LOOK_AGAIN_S = 0.01
"""The longest delay with which a commit is seen, since nothing notifies us of one."""

COORDINATORD = (sys.executable, "-m", "coordinatord", "--host", "127.0.0.1", "--port", "0", "--retry-pause", "0")


@dataclass(frozen=True, slots=True)
class Server:
    """A process that serves."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """Return the processor time that all its threads have used so far, in seconds."""
        return cpu_s_of(self.pid)

    def resident_kib(self) -> int:
        """Return the memory that it occupies, in KiB, see VmRSS in proc_pid_status(5)."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@dataclass(frozen=True, slots=True)
class Entries:
    """How much has been made durable so far, or in a step."""

    commits: int
    records: int

    def __sub__(self, before: Entries) -> Entries:
        return Entries(self.commits - before.commits, self.records - before.records)


class Ledger:
    """The database of a coordinatord that runs: its own, or its replica of what is in etcd."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def entries(self) -> Entries:
        """Return the counts so far."""
        index = self._database.with_name(f"{self._database.name}-shm").read_bytes()
        (commits,) = struct.unpack_from("=I", index, CHANGES_AT)
        return Entries(commits, self._select("SELECT count(*) FROM records"))

    async def started(self, job: str, number: int) -> None:
        """Wait until it is durable that all workers of a round are started: then nothing more is under way."""
        where = f"kind = '{RoundStarted.__name__}' AND job = '{job}' AND round = {number}"
        while not self._select(f"SELECT count(*) FROM records WHERE {where}"):  # noqa: ASYNC110, S608 - see above; our own words
            await asyncio.sleep(LOOK_AGAIN_S)

    def lost(self) -> int:
        """Return how often a node was lost."""
        return self._select(f"SELECT count(*) FROM records WHERE kind = '{NodeLost.__name__}'")  # noqa: S608 - our own words

    def _select(self, query: str) -> int:
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection:
            (count,) = connection.execute(query).fetchone()
        return int(count)


@dataclass(frozen=True, slots=True)
class Daemon(Server):
    """A coordinatord that serves."""

    ledger: Ledger
    access: Access | None
    """What its clients need; None if everybody is let in, in the clear."""


def cpu_s_of(pid: int) -> float:
    """Return the processor time that all threads of a process have used so far, in seconds."""
    return time.clock_gettime(~pid << 3 | 2)  # as in clock_getcpuclockid(3), which Python lacks


@asynccontextmanager
async def coordinatord(
    heartbeat_s: float | None = None, core: int | None = None, *, tls: bool = False, members: int = 0
) -> AsyncIterator[Daemon]:
    """Run a coordinatord on a free port of the loopback while the context lasts. Raises `BenchmarkError`.

    Its settings are the defaults, except the heartbeat if one is given, and that everybody is let in, in the clear,
    unless `tls` is wanted. It may be kept on one core of the host. With `members` its state is in an etcd of so many.
    """
    flags = () if heartbeat_s is None else ("--heartbeat", f"{heartbeat_s:g}")
    with tempfile.TemporaryDirectory() as folder, etcd_of(members, Path(folder, "etcd")) as etcd:
        state = Path(folder, "state")
        shared = () if etcd is None else ("--store", str(etcd.place("benchmark")), "--lease", f"{LEASE_S:g}")
        database = state / DATABASE if etcd is None else state / FOLDER / REPLICA
        access = Access(trusting_context(), _new_token(state)) if tls else None
        where = ("--state-dir", str(state), *(() if tls else ("--insecure",)))
        # The first start leaves tokens where the user's configuration is.
        async with server((*COORDINATORD, *where, *shared, *flags), core, {"XDG_CONFIG_HOME": folder}) as served:
            yield Daemon(served.url, served.pid, Ledger(database), access)


@contextmanager
def etcd_of(members: int, folder: Path) -> Iterator[EtcdCluster | None]:
    """Run an etcd on this host while the context lasts; None for none. Raises `BenchmarkError`."""
    if not members:
        yield None
        return
    if PROGRAM is None:
        raise BenchmarkError("there is no etcd here: apt-get install etcd-server")
    with closing(EtcdCluster(folder, members)) as cluster:
        for number in range(members):
            cluster.await_healthy(number)
        yield cluster


def _new_token(state: Path) -> str:
    """Make a key and a token before the first start."""
    argv = (sys.executable, "-m", "coordinatord", "token", "new", "--state-dir", str(state))
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603 - ours


def trusting_context() -> ssl.SSLContext:
    """Return a context for clients of a server that this process has started, which takes any key."""
    return pinned_context(lambda _: None)


@asynccontextmanager
async def server(
    command: Sequence[str], core: int | None = None, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Server]:
    """Run a program that prints ` listening on URL`, and ends well on SIGTERM. Raises `BenchmarkError`.

    It is kept on one core of the host, if one is given, and has the variables of `environ` beside those of this
    process. Its log goes into a file that is shown only if it fails.
    """
    with tempfile.TemporaryFile() as log:
        with _kept_on(core):
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=log, env=os.environ | (environ or {})
            )
        try:
            yield Server(await _read_url(process, log), process.pid)
        finally:
            await _end(process)
        if process.returncode != 0:
            raise BenchmarkError(f"{command[2]} exited with {process.returncode}: {_tail(log)}")


class Players:
    """A process that plays nodes. It is told a word in a line, and tells facts in lines of JSON."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self.process = process

    async def tell(self, word: str = "") -> dict[str, Any]:
        """Tell it a word, if any; return what it tells next. Raises `BenchmarkError`."""
        assert self.process.stdin is not None  # noqa: S101 - a pipe was asked for
        assert self.process.stdout is not None  # noqa: S101 - as above
        if word:
            self.process.stdin.write(f"{word}\n".encode())
        line = await self.process.stdout.readline()
        facts: dict[str, Any] = json.loads(line) if line else {"error": f"they ended with {await self.process.wait()}"}
        if "error" in facts:
            raise BenchmarkError(f"{self._name}: {facts['error']}")
        return facts


@asynccontextmanager
async def players(
    name: str, *command: str, environ: Mapping[str, str] | None = None, stderr: int | None = None
) -> AsyncIterator[Players]:
    """Run such a process while the context lasts; `name` is that of its nodes in errors."""
    pipe, environ = asyncio.subprocess.PIPE, os.environ | (environ or {})
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=stderr, env=environ)
    try:
        yield Players(name, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextmanager
def _kept_on(core: int | None) -> Iterator[None]:
    """Make programs that are started in this context run on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def _read_url(process: asyncio.subprocess.Process, log: IO[bytes]) -> str:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    async with asyncio.timeout(START_WITHIN_S):
        found = LISTENING.search(await process.stdout.readline())
    if found is None:
        raise BenchmarkError(f"the server did not start: {_tail(log)}")
    return found[1].decode()


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
