"""The node's session with the coordinator: connects, connects again, and carries messages. It decides nothing.

A session that ends is followed by another attempt, after a pause that grows and is random: when a coordinator comes
back, a thousand nodes must not come at the same moment. The first attempt goes to the same coordinator if it had let
the node in, each further one to the next in the list.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import socket
from collections.abc import Callable, Sequence
from functools import partial

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
from coordinatord.protocol.log_messages import LogChunk, ReadLog
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
from nodeclient.config.flag_values import Endpoint
from nodeclient.core.events import CoordinatorDegraded, DesiredReceived, Event, SessionClosed, SessionOpened, TurnedAway
from nodeclient.output.log_reader import refusal

CONNECT_WITHIN_S = 5.0
"""One lease: a node whose attempt takes longer would be lost before its session began."""

CLOSE_WITHIN_S = 0.5
"""How long to wait for the other side's close frame. A silent coordinator sends none, and the next attempt must not
wait."""

PAUSE_FIRST_S = 0.1
PAUSE_MOST_S = 1.0
"""The longest pause between attempts. The first pause fits a restart of the daemon; with this one nodes are back within
about a second."""

TURNED_AWAY_MOST_S = 10.0
"""The longest pause where the coordinator has no place for this node: until a person makes one, which takes minutes."""


AnswerLog = Callable[[LogChunk, Callable[[], None]], None]
"""Sends a piece of a log, and then makes a call."""

ReadLogs = Callable[[ReadLog, AnswerLog], None]
"""Takes a request for a piece of a log, and what answers it."""


def _without_logs(wanted: ReadLog, answer: AnswerLog) -> None:
    """Answer as a node that keeps no log files."""
    answer(refusal(wanted, "this node keeps no log files"), lambda: None)


class CoordinatorConnection:
    """The connection to whichever coordinator answers, while `run` runs."""

    def __init__(
        self,
        coordinators: Sequence[Endpoint],
        make_join: Callable[[], Join],
        submit: Callable[[Event], None],
        read_log: ReadLogs = _without_logs,
    ) -> None:
        """Begin unconnected.

        `make_join` returns the node's present `Join`. The coordinator's messages go to `submit`, and its requests for
        logs to `read_log`.
        """
        self._coordinators = coordinators
        self._make_join = make_join
        self._submit = submit
        self._read_log = read_log
        self._latest_frame = LatestFrame()
        self._version = PROTOCOL_VERSION
        """The protocol version of the present session."""
        self._why_closed = ""
        self._welcome = False
        """The coordinator has sent a desired state. One that only accepts and closes is not tried again at once."""
        self._turned_away = False
        """The coordinator was reached, and has no place for this node until a person or another node makes one."""

    def send(self, observed: Observed) -> None:
        """Send the state of the node. Without a connection nothing is sent; the next `Join` carries it."""
        self._latest_frame.put(encode(observed, self._version))

    def close(self, reason: str) -> None:
        """End the present connection; another follows."""
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
        """Hold a session in the newest version that both sides know; return why it ended or did not begin."""
        self._welcome = self._turned_away = False
        refused: Refused | None = None
        try:
            for self._version in SPOKEN:
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    connection = await self._connect(client, coordinator)
                ended = await self._carry(connection, coordinator)
                if isinstance(ended, str):
                    return ended
                refused = refused or ended  # the first refusal names the versions of both sides
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
        """Carry messages both ways until the session ends; return why, or the refusal of the version."""
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
                received = decode(message.data, Desired, Degraded, Refused, ReadLog, version=self._version)
            except SchemaError as error:
                return f"the coordinator sent what is no message: {error}"
            if isinstance(received, Refused) and received.code is RefusalCode.VERSION:
                return received
            if isinstance(received, Refused):
                self._turned_away = received.code in {RefusalCode.DRAINED, RefusalCode.LIMIT}
                self._submit(TurnedAway(received))
                return received.message
            if isinstance(received, ReadLog):
                self._read_log(received, partial(self._answer, self._latest_frame, self._version))
                continue
            self._welcome = True
            self._submit(DesiredReceived(received) if isinstance(received, Desired) else CoordinatorDegraded(received))
        return "the coordinator closed the connection"

    @staticmethod
    def _answer(latest_frame: LatestFrame, version: int, chunk: LogChunk, sent: Callable[[], None]) -> None:
        """Send a piece of a log in the session in which it was asked for; call `sent` when it is on its way."""
        latest_frame.put_beside(encode(chunk, version), sent)


def pause_after(pause_s: float, *, welcome: bool, turned_away: bool) -> float:
    """Return how long to pause at most after an attempt that followed a pause of `pause_s`, in seconds."""
    if welcome:
        return PAUSE_FIRST_S
    return min(2 * pause_s, TURNED_AWAY_MOST_S if turned_away else PAUSE_MOST_S)


def explain(coordinator: Endpoint, error: BaseException) -> str:
    """Return a text that explains why a coordinator was not reached."""
    match error:
        case TimeoutError():
            return f"no answer from {coordinator} within {CONNECT_WITHIN_S:g} s"
        case ClientConnectorDNSError() | socket.gaierror() | UnicodeError():  # UnicodeError: not a host name at all
            return f"the host name {coordinator.host} cannot be resolved"
        case WSServerHandshakeError():
            return f"{coordinator} answers with HTTP {error.status}: is it a coordinatord?"
        case ClientResponseError():
            return f"{coordinator} does not answer in HTTP: is it a coordinatord?"
        case ClientOSError() | OSError():
            return f"{coordinator}: {os.strerror(error.errno) if error.errno else error}"
        case _:
            return f"{coordinator}: {error}"
