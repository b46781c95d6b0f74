"""Nodes' sessions: one WebSocket each, messages in, the newest desired state out.

Messages pass through here unread, except the first of a session, which names the node.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from aiohttp import WSCloseCode, WSMsgType, web

from coordinatord.core.effects import Close, Refuse, ReportDegraded, Send
from coordinatord.core.events import Connected, Disconnected, Reported
from coordinatord.core.queries.master_address import plain
from coordinatord.protocol.codec import VersionError, decode, encode
from coordinatord.protocol.messages import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    Desired,
    Join,
    Observed,
    RefusalCode,
    Refused,
)
from coordinatord.protocol.schema import SchemaError
from coordinatord.runtime import __version__
from coordinatord.runtime.latest_frame import LatestFrame
from coordinatord.runtime.logs import fields
from coordinatord.server.counters import Counters
from coordinatord.server.driver import Driver
from coordinatord.server.refusal_log import LastLogged

log = logging.getLogger(__name__)

JOIN_WITHIN_S = 10.0
"""A connection without a `Join` by then is not a node's; nodeclient sends it in its first packet."""

UNSENT_BYTES_MAX = 4 * 1024
"""Ten of the usual messages. This much is written ahead for a node that does not read, in aiohttp's count and again in
the transport, and then nothing until it reads: 8 KiB of our memory at most, instead of 128 by default."""


@dataclass(slots=True)
class _Open:
    """A session that is open."""

    version: int
    """The protocol version of the session."""
    latest_frame: LatestFrame = field(default_factory=LatestFrame)
    sent: Desired | None = None
    frame: bytes = b""
    """The last frame that it was sent: most answers to heartbeats repeat it."""

    def frame_for(self, message: Desired) -> bytes:
        """Return a message as bytes; each is encoded once."""
        if self.sent is not message:
            self.sent, self.frame = message, encode(message, self.version)
        return self.frame


class NodeSessions:
    """All nodes' connections."""

    def __init__(self, driver: Driver, counters: Counters) -> None:
        """Give nodes' messages to this driver, and carry out its effects for nodes."""
        self._driver = driver
        self._counters = counters
        self._open: dict[int, _Open] = {}
        self._refused = LastLogged()
        """The last refusal by address of peers that were refused before their `Join`."""
        self._numbers = count(1)
        driver.on(Send, self._deliver)
        driver.on(ReportDegraded, self._deliver)
        driver.on(Refuse, self._deliver)
        driver.on(Close, self._deliver)

    def _deliver(self, effect: Send | ReportDegraded | Refuse | Close) -> None:
        """Carry out an effect; do nothing if the session is already gone."""
        session = self._open.get(effect.session)
        if session is None:
            return
        match effect:
            case Send():
                session.latest_frame.put(session.frame_for(effect.message))
            case ReportDegraded():
                session.latest_frame.put_if_empty(encode(effect.message, session.version))
            case Refuse():
                session.latest_frame.close(encode(effect.message, session.version))
            case Close():
                session.latest_frame.close()

    def close(self) -> None:
        """End all sessions: the nodes go on and look for the coordinator again."""
        for session in self._open.values():
            session.latest_frame.close()

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Handle a node's connection, as long as it lasts."""
        # Compression is off, since messages are small, and so is ping: heartbeats are the protocol's own, in both
        # directions.
        socket = web.WebSocketResponse(max_msg_size=FRAME_BYTES_MAX, compress=False, writer_limit=UNSENT_BYTES_MAX)
        try:
            await socket.prepare(request)
            join = await self._receive_join(socket, request)
        except ConnectionError:
            return socket  # it went before its `Join`
        if join is not None and request.transport is not None:
            await self._serve(socket, request.transport, join)
        return socket

    async def _serve(self, socket: web.WebSocketResponse, transport: asyncio.WriteTransport, join: Join) -> None:
        session = next(self._numbers)
        opened = self._open[session] = _Open(join.version)
        latest_frame = opened.latest_frame
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        peer, local = _address(transport, "peername"), _address(transport, "sockname")
        self._refused.forget(peer)
        _note_versions(join)
        self._driver.submit(Connected(session, join, peer, local))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(latest_frame.empty_into(socket), name=f"send to {join.node}")
                await self._receive(socket, transport, session, join)
                latest_frame.close()
        except* ConnectionError as errors:
            names = fields("connection_lost", job=join.job, node=join.node)
            log.debug("connection lost: %s", errors.exceptions[0], extra=names)
        finally:
            del self._open[session]
            self._driver.submit(Disconnected(session))

    async def _receive(
        self, socket: web.WebSocketResponse, transport: asyncio.WriteTransport, session: int, join: Join
    ) -> None:
        latest_frame = self._open[session].latest_frame
        async for message in socket:
            try:
                observed = decode(_frame(message.type, message.data), Observed, version=join.version)
            except SchemaError as error:
                names = fields("message_malformed", job=join.job, node=join.node)
                log.warning("malformed message: %s", error, extra=names)
                self._counters.refused[RefusalCode.MALFORMED] += 1
                latest_frame.close(encode(Refused(RefusalCode.MALFORMED, str(error), retry=False), join.version))
            else:
                self._counters.heartbeats += observed.beat
                await latest_frame.answer(partial(self._driver.submit, Reported(session, observed)), socket, transport)

    async def _receive_join(self, socket: web.WebSocketResponse, request: web.Request) -> Join | None:
        try:
            message = await socket.receive(timeout=JOIN_WITHIN_S)
            if message.type in {WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR}:
                return None
            return decode(_frame(message.type, message.data), Join)
        except TimeoutError:
            refused = Refused(RefusalCode.MALFORMED, f"no join within {JOIN_WITHIN_S:g} s", retry=True)
        except VersionError as error:
            refused = Refused(RefusalCode.VERSION, str(error), retry=False)
        except SchemaError as error:
            refused = Refused(RefusalCode.MALFORMED, str(error), retry=False)
        peer = _address(request.transport, "peername")
        if self._refused.is_new(peer, refused.message):  # a node of another release tries again and again
            log.warning("refused: %s", refused.message, extra=fields("peer_refused", peer=peer, code=refused.code))
        self._counters.refused[refused.code] += 1
        await socket.send_bytes(encode(refused))
        await socket.close(code=WSCloseCode.POLICY_VIOLATION)
        return None


def _note_versions(join: Join) -> None:
    """Log a node's versions, if they are not those of this coordinator."""
    if (join.version, join.release) != (PROTOCOL_VERSION, __version__):
        text = "node %s of job %s: release %s, version %d of the protocol; this coordinator: release %s, version %d"
        names = fields("version_differs", job=join.job, node=join.node, release=join.release, version=join.version)
        theirs, ours = (join.release or "not known", join.version), (__version__, PROTOCOL_VERSION)
        log.info(text, join.node, join.job, *theirs, *ours, extra=names)


def _frame(kind: WSMsgType, data: object) -> bytes:
    if kind is not WSMsgType.BINARY or not isinstance(data, bytes):
        raise SchemaError(f"expected a binary frame, not {kind.name.lower()}")
    return data


def _address(transport: asyncio.BaseTransport | None, which: str) -> str:
    name = transport.get_extra_info(which) if transport is not None else None
    return plain(str(name[0])) if name else "unknown"
