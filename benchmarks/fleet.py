"""Simulated nodes: they say what real ones say over real sockets, but their workers start and end in no time.

They count what goes over the wire and note when everybody has a rank; figures are made of that in `rendezvous`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from asyncio import TaskGroup
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import msgpack
from aiohttp import ClientError, ClientSession, ClientTimeout, ClientWebSocketResponse, TCPConnector, WSMsgType

from coordinatord.wire.codec import decode, encode
from coordinatord.wire.messages import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    SESSION_PATH,
    Assignment,
    Desired,
    Goal,
    Join,
    Observed,
    Offer,
    Phase,
    Refused,
    Spec,
)

JOB = "rendezvous"

MASTER_PORT = 29_500
"""Offered by every node; nobody connects to it."""

PATIENCE_S = 600.0
"""The join timeout: no node gives up while it is measured."""

REPORTS = {
    Goal.WAIT: (Phase.IDLE,),
    Goal.RUN: (Phase.STARTING, Phase.RUNNING),
    Goal.STOP: (Phase.STOPPING, Phase.STOPPED),
    Goal.EXIT: (),
}
"""What a nodeclient whose workers do as they are asked says after each new goal."""


class NodeError(Exception):
    """A node was not told what it should have been, which makes every figure void."""


@dataclass(slots=True)
class Traffic:
    """What one node sent and was sent; bytes are those of the messages, without the 2 to 8 of each frame's header."""

    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    goals: Counter[Goal] = field(default_factory=Counter)


class Node:
    """One simulated node."""

    def __init__(self, join: Join, fleet: Fleet) -> None:
        self.name = join.node
        self.traffic = Traffic()
        self.assignment: Assignment | None = None
        self._join = join
        self._fleet = fleet
        self._observed = join.observed
        self._socket: ClientWebSocketResponse | None = None
        self._lost = False

    async def live(self, client: ClientSession, url: str) -> None:
        """Join, and do what is asked until the connection ends. Raises `NodeError` if that is not by `lose`."""
        why = "the coordinator closed the connection"
        try:
            async with client.ws_connect(
                f"{url}{SESSION_PATH}", max_msg_size=FRAME_BYTES_MAX, compress=0
            ) as connection:
                self._socket = connection
                await self._send(self._join)
                self._fleet.note_joined()
                async for message in connection:
                    if message.type is WSMsgType.BINARY:
                        await self._receive(message.data)
        except (ClientError, OSError) as error:
            why = str(error)
        if not self._lost:
            raise NodeError(f"{self.name}: {why}")

    def lose(self) -> None:
        """End the connection as the kernel does when a process is killed: no closing handshake."""
        assert self._socket is not None  # noqa: S101 - it has joined
        self._lost = True
        with socket.socket(fileno=os.dup(self._socket.get_extra_info("socket").fileno())) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    async def _receive(self, frame: bytes) -> None:
        self.traffic.frames_received += 1
        self.traffic.bytes_received += len(frame)
        desired = decode(frame, Desired, Refused)
        if isinstance(desired, Refused):
            raise NodeError(f"{self.name}: refused: {desired.message}")
        self.traffic.goals[desired.goal] += 1
        self._observed = replace(self._observed, run=desired.run, round=desired.round)
        if desired.goal is Goal.RUN:
            self.assignment = desired.assignment
            self._fleet.note_ranked(desired.round)
        for phase in REPORTS[desired.goal]:
            self._observed = replace(self._observed, phase=phase)
            await self._send(self._observed)

    async def _send(self, message: Join | Observed) -> None:
        assert self._socket is not None  # noqa: S101 - only `live` and what it calls send
        frame = encode(message)
        self.traffic.frames_sent += 1
        self.traffic.bytes_sent += len(frame)
        await self._socket.send_bytes(frame)


@asynccontextmanager
async def fleet_of(size: int, url: str) -> AsyncIterator[Fleet]:
    """Have nodes for the coordinator at `url` while the context lasts.

    If one of them fails, the context ends with its `NodeError`, in an exception group.
    """
    # A connection for each node, held for as long as it lives.
    connector = TCPConnector(limit=0)
    async with ClientSession(connector=connector, timeout=ClientTimeout(total=None)) as client, TaskGroup() as tasks:
        fleet = Fleet(size, url, client, tasks)
        yield fleet
        fleet.disband()


class Fleet:
    """All nodes of one job, which may lose one of them. Times are in seconds of the monotonic clock.

    Those of uvloop's own would be of the beginning of its turn, which at a thousand nodes is many milliseconds back.
    """

    def __init__(self, size: int, url: str, client: ClientSession, tasks: TaskGroup) -> None:
        self.nodes = [Node(_join(index, size), self) for index in range(size)]
        self._url = url
        self._client = client
        self._tasks = tasks
        self.last_joined_at = 0.0
        self.last_ranked_at = 0.0
        self._round = 0
        self._ranked = 0
        self._all_ranked = asyncio.Event()

    def join(self) -> None:
        """Let all nodes join at once."""
        self._expect_round()
        for node in self.nodes:
            self._tasks.create_task(node.live(self._client, self._url), name=node.name)

    def lose_one(self) -> None:
        """Lose the node in the middle of the ranks, so that half of the others move up."""
        lost = sorted(self.nodes, key=_group_rank)[len(self.nodes) // 2]
        self.nodes.remove(lost)
        self._expect_round()
        lost.lose()

    def disband(self) -> None:
        """Lose all nodes that are left."""
        for node in self.nodes:
            node.lose()

    async def ranked(self) -> list[Assignment]:
        """Wait until every node has its part of the round; return the parts by group rank."""
        await self._all_ranked.wait()
        return sorted((part for node in self.nodes if (part := node.assignment)), key=lambda part: part.group_rank)

    async def running(self) -> None:
        """Wait until the coordinator has taken in that all workers run, so that nothing more is under way."""
        state = ""
        while state != "running":
            async with self._client.get(f"{self._url}/v1/jobs/{JOB}") as reply:
                state = msgpack.unpackb(await reply.read())["state"]

    def _expect_round(self) -> None:
        self._round += 1
        self._ranked = 0
        self._all_ranked.clear()
        for node in self.nodes:
            node.traffic = Traffic()

    def note_joined(self) -> None:
        """Take note that one node has sent its first message."""
        self.last_joined_at = time.monotonic()

    def note_ranked(self, number: int) -> None:
        """Take note that one more node has its part of a round. Raises `NodeError` for a round that is not expected."""
        self._ranked += 1
        if number != self._round or self._ranked > len(self.nodes):
            raise NodeError(f"round {number} was assigned to more nodes, or earlier, than it should be")
        if self._ranked == len(self.nodes):
            self.last_ranked_at = time.monotonic()
            self._all_ranked.set()


def _group_rank(node: Node) -> int:
    return node.assignment.group_rank if node.assignment else -1


def _join(index: int, size: int) -> Join:
    name = f"node-{index:05}"
    offer = Offer(
        host=name,
        host_id=name,
        workers=1,
        role="default",
        topology="",
        group_rank=None,
        advertise_address=None,
        routable_address=None,
        probe_port=MASTER_PORT,
        join_timeout_s=PATIENCE_S,
        stop_timeout_s=30.0,
    )
    observed = Observed(
        run="", round=0, phase=Phase.IDLE, port=MASTER_PORT, leaving=False, failure=None, heard_s=0.0, beat=False
    )
    spec = Spec(nodes_min=size - 1, nodes_max=size, max_restarts=0)
    return Join(version=PROTOCOL_VERSION, job=JOB, node=name, incarnation=1, spec=spec, offer=offer, observed=observed)
