"""A real etcd cluster of this machine, for tests, and places for stores in it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinatord.runtime.tasks import Tasks
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.leadership import Candidate, Coordinatord
from coordinatord.store.etcd.place import EtcdAccess, EtcdPlace
from coordinatord.store.etcd.requests import put, text_of, txn
from coordinatord.store.etcd_store import EtcdStore
from coordinatord.store.interface import Entry, Store, StoreError
from coordinatord.store_flags import LEASE_S
from tests.support.programs import wait_until

PROGRAM = shutil.which("etcd")

needs_etcd = pytest.mark.skipif(PROGRAM is None, reason="there is no etcd here: apt-get install etcd-server")

NOBODY = Coordinatord("here", "127.0.0.1:29400", secure=False, since=0.0)


class EtcdCluster:
    """Members on free ports of this host, in a folder."""

    def __init__(self, folder: Path, size: int = 1, *flags: str, tls: Sequence[str] = ()) -> None:
        """Start them; `tls` are flags for clients' connections."""
        self._held = ExitStack()
        names = [f"m{number}" for number in range(size)]
        ports = [self._free_port() for _ in range(2 * size)]
        self._held.close()
        self.clients, peers = ports[:size], ports[size:]
        scheme = "https" if tls else "http"
        ring = ",".join(f"{name}=http://127.0.0.1:{peer}" for name, peer in zip(names, peers, strict=True))
        self._commands = [
            [
                *(str(PROGRAM), "--name", name, "--data-dir", str(folder / name), "--logger", "zap"),
                *("--listen-client-urls", f"{scheme}://127.0.0.1:{client}"),
                *("--advertise-client-urls", f"{scheme}://127.0.0.1:{client}"),
                *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
                *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster", ring),
                *flags,
                *tls,
            ]
            for name, client, peer in zip(names, self.clients, peers, strict=True)
        ]
        self.scheme = "etcds" if tls else "etcd"
        self.members = [self._begin(number) for number in range(size)]

    def place(self, prefix: str, access: EtcdAccess | None = None) -> EtcdPlace:
        """Return a namespace of it."""
        members = ",".join(f"127.0.0.1:{port}" for port in self.clients)
        return EtcdPlace.parse(f"{self.scheme}://{members}/{prefix}", access)

    def kill(self, number: int) -> None:
        """Kill a member."""
        self.members[number].kill()
        self.members[number].wait()

    def pause(self, number: int) -> None:
        """Stop a member."""
        self.members[number].send_signal(signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        """Let it go on."""
        self.members[number].send_signal(signal.SIGCONT)

    def start(self, number: int) -> None:
        """Start a member again."""
        self.members[number] = self._begin(number)

    def await_serving(self, number: int = 0) -> None:
        """Wait until a member takes connections."""

        def look() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.clients[number])) == 0

        wait_until("etcd to serve", look)

    def close(self) -> None:
        """Kill all members."""
        for member in self.members:
            member.kill()
            member.wait()

    def _begin(self, number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._commands[number], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _free_port(self) -> int:
        listener = self._held.enter_context(socket.create_server(("127.0.0.1", 0)))
        return int(listener.getsockname()[1])


class _SteppedGateway(Gateway):
    """A gateway that makes a call before each request."""

    def __init__(self, place: EtcdPlace, before: Callable[[], Awaitable[None]]) -> None:
        super().__init__(place)
        self._before = before
        self.stepping = False

    async def call(self, path: str, body: Mapping[str, Any]) -> Any:
        """Make the call, and send the request."""
        if self.stepping:
            self.stepping = False
            await self._before()
            self.stepping = True
        return await super().call(path, body)


_NUMBERS = itertools.count()


class EtcdNamespace:
    """A namespace of its own in a cluster, as a place for stores."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        self.place = cluster.place(f"test-{next(_NUMBERS)}")
        self.keys = Keys(self.place.prefix)

    @asynccontextmanager
    async def life(self) -> AsyncIterator[Store]:
        """Lead, and open the store."""
        gateway = Gateway(self.place)
        try:
            async with self.led(gateway) as (store, _):
                yield store
        finally:
            await gateway.close()

    @asynccontextmanager
    async def led(self, gateway: Gateway) -> AsyncIterator[tuple[EtcdStore, Candidate]]:
        """Lead by this gateway, and open the store."""
        candidate, tasks = Candidate(gateway, self.keys, NOBODY, LEASE_S), Tasks()
        await candidate.win_at_once()
        tasks.spawn(candidate.keep(), name="lease")
        try:
            store = await EtcdStore.open(gateway, self.keys, candidate)
            try:
                yield store, candidate
            finally:
                await store.close()
        finally:
            await tasks.cancel()
            await candidate.resign()

    async def crashes_while(self, entries: Sequence[Entry]) -> Sequence[EtcdNamespace]:
        """Copy all keys before each request of the append, and after the last one."""
        copies: list[EtcdNamespace] = []

        async def copy() -> None:
            copies.append(await self._copied(gateway))

        gateway = _SteppedGateway(self.place, copy)
        try:
            async with self.led(gateway) as (store, _):
                gateway.stepping = True
                await store.append(entries)
                gateway.stepping = False
                await copy()
        finally:
            await gateway.close()
        return copies

    async def _copied(self, gateway: Gateway) -> EtcdNamespace:
        other = EtcdNamespace(self._cluster)
        ours, theirs = f"{self.keys.prefix}/".encode(), f"{other.keys.prefix}/".encode()
        kept = [one async for one in gateway.all_below(ours, 100) if not one.lease]
        puts = [put(theirs + one.key.removeprefix(ours), one.value) for one in kept]
        await gateway.call("/v3/kv/txn", txn([], puts))
        return other


async def usurp(place: EtcdPlace) -> None:
    """Take the leader key away, as the end of its lease does."""
    gateway = Gateway(place)
    await gateway.call("/v3/kv/deleterange", {"key": text_of(Keys(place.prefix).leader)})
    await gateway.close()


async def await_cluster(place: EtcdPlace) -> None:
    """Wait until a cluster answers."""
    gateway = Gateway(place)
    try:
        while True:
            try:
                await gateway.call("/v3/kv/range", {"key": text_of(b"anything")})
            except StoreError:
                await asyncio.sleep(0.1)
            else:
                return
    finally:
        await gateway.close()
