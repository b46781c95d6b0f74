"""The node's session with the coordinator: connects, connects again, and carries messages. It decides nothing.

A session that ends is followed by another attempt after a growing and random pause: when a coordinator comes back, a
thousand nodes do not come at the same moment. The first is at the same coordinator if it had let the node in, each
further one at the next of the list.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import socket
from collections.abc import Callable, Sequence

from aiohttp import (
    ClientConnectorDNSError,
    ClientError,
    ClientOSError,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    ClientWSTimeout,
    WSMsgType,
    WSServerHandshakeError,
)

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    SESSION_PATH,
    Degraded,
    Desired,
    Join,
    Observed,
    RefusalCode,
    Refused,
)
from coordinatord.protocol.schema import SchemaError
from coordinatord.protocol.versions import SPOKEN
from coordinatord.runtime.latest_frame import LatestFrame
from coordinatord.runtime.tcp_options import keep_trying
from nodeclient.config import Endpoint
from nodeclient.core.events import CoordinatorDegraded, DesiredReceived, Event, SessionClosed, SessionOpened, TurnedAway

CONNECT_WITHIN_S = 5.0
"""One lease: an attempt that takes longer would be lost before it began."""

CLOSE_WITHIN_S = 0.5
"""For the other side's word of farewell: one that is silent has none, and the next attempt must not wait for it."""

PAUSE_FIRST_S = 0.1
PAUSE_MOST_S = 1.0
"""Between attempts; the first fits a restart of the daemon, the last lets nodes be back within about a second."""

TURNED_AWAY_MOST_S = 10.0
"""The same where the coordinator has no place for this node: until a person makes one, which takes minutes."""


class CoordinatorConnection:
    """The connection to whichever coordinator answers, for as long as `run` runs."""

    def __init__(
        self, coordinators: Sequence[Endpoint], make_join: Callable[[], Join], submit: Callable[[Event], None]
    ) -> None:
        """`make_join` says who the node is as of now; what is heard goes to `submit`."""
        self._coordinators = coordinators
        self._make_join = make_join
        self._submit = submit
        self._latest_frame = LatestFrame()
        self._version = PROTOCOL_VERSION
        """That of the present session."""
        self._why_closed = ""
        self._welcome = False
        """The coordinator has said what it desires; one that only accepts and closes is not asked again at once."""
        self._turned_away = False
        """It is reached, and has no place for this node until a person or another node makes one."""

    def send(self, observed: Observed) -> None:
        """Say what is; without a connection nothing is sent, the next join says it."""
        self._latest_frame.put(encode(observed, self._version))

    def close(self, reason: str) -> None:
        """End the present connection, to be followed by another."""
        self._why_closed = reason
        self._latest_frame.close()

    async def run(self) -> None:
        """Connect and carry messages until cancelled."""
        pause, place = PAUSE_FIRST_S, 0
        async with ClientSession(timeout=ClientTimeout(total=None, sock_connect=CONNECT_WITHIN_S)) as client:
            while True:
                reason = await self._attend(client, self._coordinators[place])
                self._submit(SessionClosed(reason))
                pause = pause_after(pause, welcome=self._welcome, turned_away=self._turned_away)
                if not self._welcome:
                    place = (place + 1) % len(self._coordinators)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, keeps no secret

    async def _attend(self, client: ClientSession, coordinator: Endpoint) -> str:
        """Have a session, in the newest version that the coordinator speaks too; return why it ended, or was none."""
        self._welcome = self._turned_away = False
        refused: Refused | None = None
        try:
            for self._version in SPOKEN:
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    connection = await self._connect(client, coordinator)
                ended = await self._carry(connection, coordinator)
                if isinstance(ended, str):
                    return ended
                refused = refused or ended  # the first names what both sides speak
        except (ClientError, OSError, TimeoutError, UnicodeError) as error:
            return explain(coordinator, error)
        assert refused is not None  # noqa: S101 - a session ends with a reason, or with a refusal of its version
        self._submit(TurnedAway(refused))
        return refused.message

    async def _connect(self, client: ClientSession, coordinator: Endpoint) -> ClientWebSocketResponse:
        connection = await client.ws_connect(
            f"ws://{coordinator}{SESSION_PATH}",
            max_msg_size=FRAME_BYTES_MAX,
            compress=0,
            autoping=False,
            timeout=ClientWSTimeout(ws_close=CLOSE_WITHIN_S),
        )
        keep_trying(connection.get_extra_info("socket"))
        return connection

    async def _carry(self, connection: ClientWebSocketResponse, coordinator: Endpoint) -> str | Refused:
        """Carry messages both ways until the session ends; return why it did, or that its version is not spoken."""
        self._latest_frame, self._why_closed = LatestFrame(), ""
        reason: str | Refused
        try:
            join = dataclasses.replace(self._make_join(), version=self._version)
            await connection.send_bytes(encode(join, self._version))
            self._submit(SessionOpened(str(coordinator)))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._latest_frame.empty_into(connection), name="send to the coordinator")
                reason = await self._receive(connection)
                self._latest_frame.close()
        except* OSError as errors:
            reason = str(errors.exceptions[0])
        finally:
            await connection.close()
        return self._why_closed or reason

    async def _receive(self, connection: ClientWebSocketResponse) -> str | Refused:
        async for message in connection:
            if message.type is not WSMsgType.BINARY:
                return f"the coordinator sent a {message.type.name.lower()} frame"
            try:
                received = decode(message.data, Desired, Degraded, Refused, version=self._version)
            except SchemaError as error:
                return f"the coordinator sent what is no message: {error}"
            if isinstance(received, Refused) and received.code is RefusalCode.VERSION:
                return received
            if isinstance(received, Refused):
                self._turned_away = received.code in {RefusalCode.DRAINED, RefusalCode.LIMIT}
                self._submit(TurnedAway(received))
                return received.message
            self._welcome = True
            self._submit(DesiredReceived(received) if isinstance(received, Desired) else CoordinatorDegraded(received))
        return "the coordinator closed the connection"


def pause_after(pause_s: float, *, welcome: bool, turned_away: bool) -> float:
    """Return how long to pause at most after an attempt that followed a pause of `pause_s`, in seconds."""
    if welcome:
        return PAUSE_FIRST_S
    return min(2 * pause_s, TURNED_AWAY_MOST_S if turned_away else PAUSE_MOST_S)


def explain(coordinator: Endpoint, error: BaseException) -> str:
    """Say in words why a coordinator was not reached."""
    match error:
        case TimeoutError():
            return f"no answer from {coordinator} within {CONNECT_WITHIN_S:g} s"
        case ClientConnectorDNSError() | socket.gaierror() | UnicodeError():  # the last: no name at all
            return f"the host name {coordinator.host} cannot be resolved"
        case WSServerHandshakeError():
            return f"{coordinator} answers with HTTP {error.status}: is it a coordinatord?"
        case ClientResponseError():
            return f"{coordinator} does not answer in HTTP: is it a coordinatord?"
        case ClientOSError() | OSError():
            return f"{coordinator}: {os.strerror(error.errno) if error.errno else error}"
        case _:
            return f"{coordinator}: {error}"
