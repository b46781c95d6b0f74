"""The node's session with the coordinator: connects, connects again, and carries messages. It decides nothing.

A session that ends is followed by another attempt, at the next coordinator of the list, after a growing and random
pause: when a coordinator comes back, a thousand nodes do not come at the same moment.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Sequence
from itertools import cycle

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

from coordinatord.shared.mailbox import Mailbox
from coordinatord.shared.sockets import keep_trying
from coordinatord.wire.codec import decode, encode
from coordinatord.wire.messages import FRAME_BYTES_MAX, SESSION_PATH, Desired, Held, Join, Observed, Refused
from coordinatord.wire.schema import SchemaError
from nodeclient.config import Endpoint
from nodeclient.core.events import Event, Reassured, SessionClosed, SessionOpened, Told, TurnedAway

CONNECT_WITHIN_S = 5.0
"""One lease: an attempt that takes longer would be lost before it began."""

CLOSE_WITHIN_S = 0.5
"""For the other side's word of farewell: one that is silent has none, and the next attempt must not wait for it."""

PAUSE_FIRST_S = 0.1
PAUSE_MOST_S = 1.0
"""Between attempts; the first fits a restart of the daemon, the last lets nodes be back within about a second."""


class Session:
    """The connection to whichever coordinator answers, for as long as `run` runs."""

    def __init__(
        self, coordinators: Sequence[Endpoint], make_join: Callable[[], Join], submit: Callable[[Event], None]
    ) -> None:
        """`make_join` says who the node is as of now; what is heard goes to `submit`."""
        self._coordinators = coordinators
        self._make_join = make_join
        self._submit = submit
        self._mailbox = Mailbox()
        self._why_closed = ""
        self._welcome = False
        """The coordinator has said what it desires; one that only accepts and closes is not asked again at once."""

    def send(self, observed: Observed) -> None:
        """Say what is; without a connection nothing is sent, the next join says it."""
        self._mailbox.put(encode(observed))

    def close(self, reason: str) -> None:
        """End the present connection, to be followed by another."""
        self._why_closed = reason
        self._mailbox.close()

    async def run(self) -> None:
        """Connect and carry messages until cancelled."""
        pause = PAUSE_FIRST_S
        async with ClientSession(timeout=ClientTimeout(total=None, sock_connect=CONNECT_WITHIN_S)) as client:
            for coordinator in cycle(self._coordinators):
                self._welcome = False
                try:
                    async with asyncio.timeout(CONNECT_WITHIN_S):
                        connection = await self._connect(client, coordinator)
                    reason = await self._carry(connection, coordinator)
                except (ClientError, OSError, TimeoutError, UnicodeError) as error:
                    reason = explain(coordinator, error)
                self._submit(SessionClosed(reason))
                pause = PAUSE_FIRST_S if self._welcome else min(2 * pause, PAUSE_MOST_S)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, keeps no secret

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

    async def _carry(self, connection: ClientWebSocketResponse, coordinator: Endpoint) -> str:
        """Carry messages both ways until the session ends; return why it did."""
        self._mailbox, self._why_closed = Mailbox(), ""
        try:
            await connection.send_bytes(encode(self._make_join()))
            self._submit(SessionOpened(str(coordinator)))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._mailbox.empty_into(connection), name="send to the coordinator")
                reason = await self._receive(connection)
                self._mailbox.close()
        except* OSError as errors:
            reason = str(errors.exceptions[0])
        finally:
            await connection.close()
        return self._why_closed or reason

    async def _receive(self, connection: ClientWebSocketResponse) -> str:
        async for message in connection:
            if message.type is not WSMsgType.BINARY:
                return f"the coordinator sent a {message.type.name.lower()} frame"
            try:
                heard = decode(message.data, Desired, Held, Refused)
            except SchemaError as error:
                return f"the coordinator sent what is no message: {error}"
            if isinstance(heard, Refused):
                self._submit(TurnedAway(heard))
                return heard.message
            self._welcome = True
            self._submit(Told(heard) if isinstance(heard, Desired) else Reassured(heard))
        return "the coordinator closed the connection"


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
