"""A node as the coordinator sees one: a WebSocket client that sends what a test wants, and receives the answers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgpack
from aiohttp import AddrInfoType, ClientSession, ClientWebSocketResponse, TCPConnector, WSMsgType
from msgspec import structs
from yarl import URL

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.log_messages import LogChunk, ReadLog
from coordinatord.protocol.messages import (
    SESSION_PATH,
    Degraded,
    Desired,
    Failure,
    Goal,
    Join,
    Observed,
    Phase,
    Refused,
    WorkerStarts,
)
from coordinatord.protocol.stack_messages import AskStacks, Stacks
from tests.support.builders import a_join, a_spec, an_observed, an_offer
from tests.support.programs import TIMEOUT_S

Kind = TypeVar("Kind", Desired, Degraded, Refused, ReadLog, AskStacks)

IDLE = an_observed(port=30_000)

LOOK_EVERY_S = 0.001
"""The time between two looks at what a test waits for: without any, it would take the processor from what it waits for.
"""

OFFER = an_offer(host="host", host_id="host", join_timeout_s=600.0, stop_timeout_s=30.0)


def join(node: str = "a", *, job: str = "job", nodes: int = 1, **changes: Any) -> Join:
    """Return the first message of a node in a job of so many nodes."""
    return a_join(node, **{"job": job, "spec": a_spec(nodes, nodes, 0), "offer": OFFER, "observed": IDLE} | changes)


class Peer:
    """One end of a session."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket
        self._observed = IDLE

    async def send(self, message: Join | Observed | LogChunk | Stacks) -> None:
        """Send one message."""
        await self.socket.send_bytes(encode(message))

    async def report(
        self, phase: Phase, desired: Desired, failure: Failure | None = None, begun: WorkerStarts | None = None
    ) -> None:
        """Report this phase of the round, and how its workers were begun."""
        self._observed = structs.replace(
            IDLE, run=desired.run, round=desired.round, phase=phase, failure=failure, begun=begun, beat=False
        )
        await self.send(self._observed)

    async def beat(self) -> None:
        """Repeat the report as a heartbeat, which is answered."""
        await self.send(structs.replace(self._observed, beat=True))

    async def receive(self, kind: type[Kind]) -> Kind:
        """Return the next message."""
        frame = await self.socket.receive(timeout=TIMEOUT_S)
        assert frame.type is WSMsgType.BINARY, frame
        return decode(frame.data, kind)

    async def receive_goal(self, goal: Goal) -> Desired:
        """Return the next message with this goal."""
        while (desired := await self.receive(Desired)).goal is not goal:
            pass
        return desired

    async def start_workers(self) -> Desired:
        """Take part in the next round, up to the report that the workers run; return what was wanted."""
        desired = await self.receive_goal(Goal.RUN)
        await self.report(Phase.RUNNING, desired)
        return desired

    async def receive_end(self) -> None:
        """Check that the next thing received is the end of the session."""
        frame = await self.socket.receive(timeout=TIMEOUT_S)
        assert frame.type in {WSMsgType.CLOSE, WSMsgType.CLOSED}, frame


@asynccontextmanager
async def connect(url: str, message: Join | None = None, *, buffer_bytes: int | None = None) -> AsyncIterator[Peer]:
    """Open a session, and join at once if `message` is given; the kernel may hold so many bytes that are unread."""

    def make_socket(found: AddrInfoType) -> socket.socket:
        made = socket.socket(*found[:3])
        if buffer_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        return made

    connector = TCPConnector(socket_factory=make_socket)
    async with (
        ClientSession(connector=connector) as client,
        client.ws_connect(f"{url}{SESSION_PATH}", autoping=False) as opened,
    ):
        peer = Peer(opened)
        if message is not None:
            await peer.send(message)
        yield peer


async def get(url: str, accept: str = "") -> tuple[int, str, Any]:
    """Send a request over HTTP; return the status, the kind of content and the content."""
    headers = {"Accept": accept} if accept else {}
    async with ClientSession() as client, client.get(URL(url, encoded=True), headers=headers) as answer:
        body = await (answer.json() if "json" in answer.content_type else answer.read())
        return answer.status, answer.content_type, body if "json" in answer.content_type else msgpack.unpackb(body)


async def until(holds: Callable[[], bool]) -> None:
    """Run everything else until something holds, and leave the processor to other programs meanwhile."""
    async with asyncio.timeout(TIMEOUT_S):
        while not holds():  # noqa: ASYNC110 - what is looked at announces nothing
            await asyncio.sleep(LOOK_EVERY_S)
