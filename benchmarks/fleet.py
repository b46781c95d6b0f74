"""Simulated nodes: they send what real ones send over real sockets, but their workers start and end in no time.

They count the bytes on the wire, and note when all have ranks and how late heartbeats are answered; others make figures
of that.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from asyncio import TaskGroup
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from link import Access, Link, framed
from msgspec.structs import replace
from tables import BenchmarkError

from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.messages import (
    PROTOCOL_VERSION,
    Assignment,
    Degraded,
    Desired,
    Goal,
    JobSpec,
    Join,
    Message,
    NodeOffer,
    Observed,
    Phase,
    Refused,
)
from coordinatord.runtime import __version__
from nodeclient.core.connection_state import TRANSIENT

MASTER_PORT = 29_500
"""The port that every node offers; nobody connects to it."""

PATIENCE_S = 600.0
"""The join timeout: no node gives up while it is measured."""

NO_WORKERS = "its workers are simulated, and arrive in no collective"

PHASES = {
    Goal.WAIT: (Phase.IDLE,),
    Goal.RUN: (Phase.STARTING, Phase.RUNNING),
    Goal.STOP: (Phase.STOPPING, Phase.STOPPED),
    Goal.EXIT: (),
}
"""The phases of a nodeclient after each new goal, if its workers do as they are asked."""


@dataclass(slots=True)
class Traffic:
    """The messages of one node in both directions; bytes are without the 2 to 8 of each frame's header."""

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
        self.link: Link | None = None
        self._last_received = b""
        self._aim: tuple[str, int, Goal] | None = None
        self._heartbeat_s = 0.0
        """The granted heartbeat; 0 until the coordinator's first message."""
        self._beat_at = 0.0
        """When the heartbeat that is not answered yet was sent, or 0."""
        self._lost = False

    async def live(self, url: str, access: Access | None, after_s: float) -> None:
        """Join, and do what is asked until the connection ends.

        Raises `BenchmarkError` if another than `lose` ends it.
        """
        await asyncio.sleep(after_s)
        self._fleet.note_begun()
        try:
            self.link = await Link.connect(url, self._receive, access)
            self._send(self._join)
            self._fleet.note_joined()
            why = await self.link.end()
        except (OSError, OperationalError) as error:
            why = str(error)
        if not self._lost:
            raise BenchmarkError(f"{self.name}: {why}")

    def lose(self) -> None:
        """End the connection as the kernel does when a process is killed."""
        assert self.link is not None  # noqa: S101 - it has joined
        self._lost = True
        self.link.cut()

    def heartbeat(self) -> Observed:
        """Return the heartbeat that it sends."""
        return replace(self._observed, beat=True, heard_s=self._heartbeat_s)

    def _receive(self, message: bytes) -> None:
        traffic = self.traffic
        traffic.frames_received += 1
        traffic.bytes_received += len(message)
        if self._beat_at:
            self._fleet.answers_s.append(time.monotonic() - self._beat_at)
            self._beat_at = 0.0
        if message != self._last_received:  # a repeated message asks for nothing new
            self._last_received = message
            self._heed(decode(message, Desired, Refused, Degraded, AskArrivals))

    def _heed(self, desired: Message) -> None:
        if isinstance(desired, AskArrivals):
            self._send(Arrivals(desired.request, time.monotonic(), 0.0, (), NO_WORKERS))
            return
        if not isinstance(desired, Desired):
            raise BenchmarkError(f"{self.name}: the coordinator answered {desired}")
        if not self._heartbeat_s and self._fleet.beating:
            asyncio.get_running_loop().call_later(desired.heartbeat_s, self._beat)
        self._heartbeat_s = desired.heartbeat_s
        self.traffic.goals[desired.goal] += 1
        aim = (desired.run, desired.round, desired.goal)
        if aim == self._aim:
            return  # the same goal with another text
        self._aim = aim
        self._observed = replace(self._observed, run=desired.run, round=desired.round)
        if desired.goal is Goal.RUN:
            self.assignment = desired.assignment
            self._fleet.note_ranked(desired.round)
        for phase in PHASES[desired.goal]:
            self._observed = replace(self._observed, phase=phase)
            if phase not in TRANSIENT:
                self._send(self._observed)

    def _beat(self) -> None:
        if self._lost:
            return
        asyncio.get_running_loop().call_later(self._heartbeat_s, self._beat)
        if self._beat_at:
            self._fleet.overdue += 1
            return
        self._beat_at = time.monotonic()
        self._send(self.heartbeat())

    def _send(self, message: Join | Observed | Arrivals) -> None:
        assert self.link is not None  # noqa: S101 - only `live` and what it calls send
        packed = encode(message)
        self.traffic.frames_sent += 1
        self.traffic.bytes_sent += len(packed)
        self.link.put_frame(framed(packed))


@asynccontextmanager
async def fleet_of(
    size: int, url: str, job: str, *, beating: bool = False, access: Access | None = None
) -> AsyncIterator[Fleet]:
    """Have nodes for a coordinator at `url` while the context lasts; if `beating`, they beat from their first goal on.

    If one of them fails, the context ends with its `BenchmarkError`, in an exception group.
    """
    async with TaskGroup() as tasks:
        fleet = Fleet(size, url, job, tasks, beating=beating, access=access)
        yield fleet
        fleet.disband()


class Fleet:
    """All nodes of one job, which may lose one of them. Times are in seconds of the monotonic clock.

    uvloop's own time is that of the beginning of its iteration, which at a thousand nodes is many milliseconds back.
    """

    def __init__(
        self, size: int, url: str, job: str, tasks: TaskGroup, *, beating: bool, access: Access | None = None
    ) -> None:
        self.nodes = [Node(_join(job, index, size), self) for index in range(size)]
        self.beating = beating
        self._url = url
        self._access = access
        self._tasks = tasks
        self.first_began_at = 0.0
        self.last_joined_at = 0.0
        self.last_ranked_at = 0.0
        self.answers_s = array("d")
        """How late each heartbeat was answered."""
        self.overdue = 0
        """Heartbeats that were due before the last one had been answered, and so were not sent."""
        self.round = 0
        self._ranked = 0
        self._all_ranked = asyncio.Event()

    def join(self, within_s: float = 0.0) -> None:
        """Let all nodes join, at once or spread evenly."""
        self._expect_round()
        for index, node in enumerate(self.nodes):
            after_s = within_s * index / len(self.nodes)
            self._tasks.create_task(node.live(self._url, self._access, after_s), name=node.name)

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

    def count_anew(self) -> None:
        """Forget what was counted so far."""
        self.answers_s = array("d")
        self.overdue = 0
        for node in self.nodes:
            node.traffic = Traffic()

    def _expect_round(self) -> None:
        self.round += 1
        self._ranked = 0
        self._all_ranked.clear()
        self.count_anew()

    def note_begun(self) -> None:
        """Note that one node begins to connect."""
        self.first_began_at = self.first_began_at or time.monotonic()

    def note_joined(self) -> None:
        """Note that one node has sent its first message."""
        self.last_joined_at = time.monotonic()

    def note_ranked(self, number: int) -> None:
        """Note that one more node has its part of a round. Raises `BenchmarkError` if it should not."""
        self._ranked += 1
        if number != self.round or self._ranked > len(self.nodes):
            raise BenchmarkError(f"round {number} was assigned to more nodes, or earlier, than it should be")
        if self._ranked == len(self.nodes):
            self.last_ranked_at = time.monotonic()
            self._all_ranked.set()


def _group_rank(node: Node) -> int:
    return node.assignment.group_rank if node.assignment else -1


def _join(job: str, index: int, size: int) -> Join:
    name = f"node-{index:05}"
    offer = NodeOffer(
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
    spec = JobSpec(nodes_min=max(1, size - 1), nodes_max=size, max_restarts=0)
    return Join(
        version=PROTOCOL_VERSION,
        job=job,
        node=name,
        incarnation=1,
        spec=spec,
        offer=offer,
        observed=observed,
        release=__version__,  # a node of another release is logged
    )
