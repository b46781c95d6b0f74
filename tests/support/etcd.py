"""A real etcd cluster of this machine, for tests, and places for stores in it."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinatord.runtime.tasks import Tasks
from coordinatord.store.database_store import Store
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.etcd.location import EtcdAccess, EtcdLocation
from coordinatord.store.etcd.requests import EtcdAnswer, after, put, text_of, txn
from coordinatord.store.etcd.roster import Coordinatord
from coordinatord.store.etcd_store import EtcdStore
from coordinatord.store.interface import Entry, StoreError
from coordinatord.store.migrations import STEPS, Steps
from nodeclient.host.ports import PortReservation
from tests.support.programs import wait_until

PROGRAM = shutil.which("etcd")

needs_etcd = pytest.mark.skipif(PROGRAM is None, reason="there is no etcd here: apt-get install etcd-server")

LONG_LEASE_S = 60.0
"""A busy machine need not renew it in time."""

NOBODY = Coordinatord("here", "127.0.0.1:29400", secure=False, since=0.0)


HOST = "127.0.0.1"

CLIENT_PORT, PEER_PORT = 2379, 2380
"""The ports of etcd, where it has a host of its own."""


class EtcdCluster:
    """Coordinators on free ports of this host, or one on each of several hosts, in a folder."""

    def __init__(
        self,
        folder: Path,
        size: int = 1,
        *flags: str,
        tls: Sequence[str] = (),
        hosts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Start them; `tls` are flags for clients' connections, `hosts` addresses with prefixes for their programs."""
        # Held until the end: a member that is killed and started again listens where it did.
        self._held = [(PortReservation(), PortReservation()) for _ in range(0 if hosts else size)]
        free = [(HOST, client.port, peer.port) for client, peer in self._held]
        places = [(address, CLIENT_PORT, PEER_PORT) for address in hosts or ()] or free
        self.clients = [(address, client) for address, client, _ in places]
        """Address and port of each member, for clients."""
        peers = [f"http://{address}:{peer}" for address, _, peer in places]
        ring = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        clients = [f"{'https' if tls else 'http'}://{address}:{port}" for address, port in self.clients]
        self._commands = [
            [
                *(hosts[address] if hosts else ()),
                *(str(PROGRAM), "--name", f"m{number}", "--data-dir", str(folder / f"m{number}"), "--logger", "zap"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", ring),
                *flags,
                *tls,
            ]
            for number, ((address, _), client, peer) in enumerate(zip(self.clients, clients, peers, strict=True))
        ]
        self.scheme = "etcds" if tls else "etcd"
        self.members = [self._begin(number) for number in range(len(places))]

    def place(self, prefix: str, access: EtcdAccess | None = None) -> EtcdLocation:
        """Return a namespace of the cluster."""
        members = ",".join(f"{address}:{port}" for address, port in self.clients)
        return EtcdLocation.parse(f"{self.scheme}://{members}/{prefix}", access)

    def kill(self, number: int) -> None:
        """Kill a member."""
        self.members[number].kill()
        self.members[number].wait()

    def pause(self, number: int) -> None:
        """Stop a member."""
        self.members[number].send_signal(signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        """Let a paused member go on."""
        self.members[number].send_signal(signal.SIGCONT)

    def start(self, number: int) -> None:
        """Start a member again."""
        self.members[number] = self._begin(number)

    def await_serving(self) -> None:
        """Wait until the first member takes connections."""

        def look() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(self.clients[0]) == 0

        wait_until("etcd to serve", look)

    def await_healthy(self, number: int) -> None:
        """Wait until a member takes part in the decisions of the cluster; without TLS."""
        address, port = self.clients[number]

        def look() -> bool:
            try:
                with urllib.request.urlopen(f"http://{address}:{port}/health", timeout=5) as answer:
                    return bool(json.load(answer)["health"] == "true")
            except OSError:
                return False

        wait_until("a member of etcd to be well", look)

    def fill(self) -> None:
        """Write until there is no room for more; without TLS. Its NOSPACE alarm stays until `make_room`."""
        answer, number = "", 0
        while "database space exceeded" not in answer:
            number += 1
            answer = self._post("kv/put", {"key": text_of(b"filler/%d" % number), "value": text_of(bytes(256 * 1024))})

    def make_room(self) -> None:
        """Delete what `fill` has written, as an operator would, and end the alarm."""
        deleted = self._post("kv/deleterange", {"key": text_of(b"filler/"), "range_end": text_of(after(b"filler/"))})
        self._post("kv/compaction", {"revision": json.loads(deleted)["header"]["revision"], "physical": True})
        self._post("maintenance/defragment", {})
        for alarm in json.loads(self._post("maintenance/alarm", {"action": "GET"})).get("alarms", ()):
            self._post("maintenance/alarm", {"action": "DEACTIVATE", **alarm})

    def _post(self, path: str, body: Mapping[str, Any]) -> str:
        """Return what the first member answers, also if it refuses."""
        address, port = self.clients[0]
        request = urllib.request.Request(f"http://{address}:{port}/v3/{path}", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - http
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def close(self) -> None:
        """Kill all members."""
        for member in self.members:
            member.kill()
            member.wait()
        for reservation in (reservation for both in self._held for reservation in both):
            reservation.close()

    def _begin(self, number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._commands[number], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def user_file(folder: Path, text: str) -> Path:
    """Write the file of --etcd-user-file; return it."""
    path = folder / "etcd-user"
    path.write_text(f"{text}\n")
    return path


async def want_password(place: EtcdLocation, password: str, *more: tuple[str, Mapping[str, Any]]) -> None:
    """Let a new cluster want this password of its user root, after `more` requests about users and roles."""
    await await_cluster(place)
    root = {"name": "root", "password": password}
    async with gateway_to(place) as gateway:
        for path, body in (("user/add", root), ("user/grant", {"user": "root", "role": "root"}), *more, ("enable", {})):
            await gateway.call(f"/v3/auth/{path}", body)


@asynccontextmanager
async def gateway_to(place: EtcdLocation) -> AsyncIterator[Gateway]:
    """Open a gateway, and close it."""
    gateway = Gateway(place)
    try:
        yield gateway
    finally:
        await gateway.close()


class SteppedGateway(Gateway):
    """A gateway that makes a call before each request."""

    def __init__(self, place: EtcdLocation, before: Callable[[], Awaitable[None]]) -> None:
        super().__init__(place)
        self._before = before
        self.stepping = False

    async def call(self, path: str, body: Mapping[str, Any], try_within_s: float | None = None) -> EtcdAnswer:
        """Make the call, and send the request."""
        if self.stepping:
            self.stepping = False
            await self._before()
            self.stepping = True
        return await super().call(path, body, try_within_s)


_NUMBERS = itertools.count()


async def tidied(store: EtcdStore) -> None:
    """Wait until the tidying after the last commit is over. Raises `LeadershipLostError`."""
    await store._end_of_merger()
    if store._compacting is not None:
        await store._compacting


class EtcdNamespace:
    """A namespace of its own in a cluster, as a place for stores."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        self.place = cluster.place(f"test-{next(_NUMBERS)}")
        self.keys = Keys(self.place.prefix)

    @asynccontextmanager
    async def life(self) -> AsyncIterator[Store]:
        """Lead, and open the store."""
        async with self.led() as (store, _):
            yield store

    @asynccontextmanager
    async def led(
        self, gateway: Gateway | None = None, steps: Steps = STEPS
    ) -> AsyncIterator[tuple[EtcdStore, Candidate]]:
        """Lead by this gateway or one of its own, and open the store with tables that these steps lead to."""
        if gateway is None:
            async with gateway_to(self.place) as own, self.led(own, steps) as found:
                yield found
            return
        candidate, tasks = Candidate(gateway, self.keys, NOBODY, LONG_LEASE_S), Tasks()
        await candidate.win_at_once()
        tasks.spawn(candidate.lead(), name="lease")
        try:
            store = await EtcdStore.open(gateway, self.keys, candidate, steps=steps)
            try:
                yield store, candidate
            finally:
                await store.close()
        finally:
            await tasks.cancel()
            await candidate.resign()

    async def crashes_while(self, entries: Sequence[Entry]) -> Sequence[EtcdNamespace]:
        """Copy all keys before each request of the append, and after the last one."""
        async with self.copying() as (gateway, copies), self.led(gateway) as (store, _):
            gateway.stepping = True
            await store.append(entries)
            await tidied(store)
            gateway.stepping = False
        return copies

    @asynccontextmanager
    async def copying(self) -> AsyncIterator[tuple[SteppedGateway, list[EtcdNamespace]]]:
        """Copy all keys before each request of a gateway for which it is `stepping`, and at the end."""
        copies: list[EtcdNamespace] = []

        async def copy() -> None:
            copies.append(await self._copied(gateway))

        gateway = SteppedGateway(self.place, copy)
        try:
            yield gateway, copies
            await copy()
        finally:
            await gateway.close()

    async def _copied(self, gateway: Gateway) -> EtcdNamespace:
        other = EtcdNamespace(self._cluster)
        ours, theirs = f"{self.keys.prefix}/".encode(), f"{other.keys.prefix}/".encode()
        kept = [pair async for pair in gateway.all_below(ours, 100) if not pair.lease]
        puts = [put(theirs + pair.key.removeprefix(ours), pair.value) for pair in kept]
        await gateway.call("/v3/kv/txn", txn([], puts))
        return other


async def usurp(place: EtcdLocation) -> None:
    """Take the leader key away, as the end of its lease does."""
    async with gateway_to(place) as gateway:
        await gateway.call("/v3/kv/deleterange", {"key": text_of(Keys(place.prefix).leader)})


async def await_cluster(place: EtcdLocation) -> None:
    """Wait until a cluster answers."""
    async with gateway_to(place) as gateway:
        while True:
            try:
                await gateway.call("/v3/kv/range", {"key": text_of(b"anything")})
            except StoreError:
                await asyncio.sleep(0.1)
            else:
                return
