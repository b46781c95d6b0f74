"""Passes messages between nodes' WebSockets and the driver, and limits how many a node may send.

A session is one WebSocket of a node. Only its first message, the `Join`, is judged here: whether the node may join its
job with its token, and does not join too often. All later messages go to the driver, and the driver's messages go to
the node. Each of these has all that the coordinator wants of the node, so a slow node gets only the newest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any

from coordinatord.core.rounds.effects import Close, Refuse, ReportDegraded, Send
from coordinatord.core.rounds.events import Connected, Disconnected, Reported
from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.codec import VersionError, decode, encode
from coordinatord.protocol.ip_addresses import plain_address
from coordinatord.protocol.log_messages import LogChunk, ReadLog
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
from coordinatord.protocol.stack_messages import AskStacks, Stacks
from coordinatord.protocol.text import clip
from coordinatord.runtime import __version__
from coordinatord.runtime.logs import fields
from coordinatord.runtime.timers import Timeouts
from coordinatord.runtime.websocket.frames import BINARY, CloseCode, FrameError, FrameReader, framed
from coordinatord.runtime.websocket.web_socket import WebSocket
from coordinatord.security.gatekeeper import ANYBODY, Caller, DeniedError, client_network
from coordinatord.server.counters import Counters
from coordinatord.server.driver import Driver
from coordinatord.server.sessions.connection_limits import ConnectionLimits, PendingConnections
from coordinatord.server.sessions.node_reads import NodeReads
from coordinatord.server.sessions.refusal_log import RefusalLog

log = logging.getLogger(__name__)

JOIN_WITHIN_S = 10.0
"""The time limit of a session's `Join`: nodeclient sends it in its first packet."""

JOINS_AT_ONCE = 30
"""How often a node may join in a burst. A nodeclient waits at least 50 ms before it joins again, so the burst lasts for
1.5 s in a network that breaks each connection."""

JOINS_PER_S = 2.0
"""How often it may join after the burst: twice as often as a nodeclient with a broken network does."""

JOINERS_MAX = 20_000
"""The limit of nodes whose joins are counted, twice the largest cluster; the one that joined longest ago is dropped."""

FRAMES_AT_ONCE = 256
"""How many frames a node may send in a burst. It sends at most ten heartbeats a second, and waits for an answer for one
lease, in which it sends at most 15. So even after a long sleep of this host only some 15 frames are unread."""

FRAMES_PER_S = 25.0
"""How many frames a second it may send after the burst: ten heartbeats and some changes. Each request to the node
allows one more, for its answer."""

CLOSE_WITHIN_S = 2.0
"""How long to wait for the peer's close frame. A connection that is closed while the peer still sends is reset, and the
peer loses all that it has not read."""


class NodeSessions:
    """The sessions of all nodes."""

    def __init__(self, driver: Driver, counters: Counters, limits: ConnectionLimits) -> None:
        """Submit nodes' messages to this driver, and carry out its effects for nodes."""
        self._driver = driver
        self._counters = counters
        self._joined: dict[int, NodeSession] = {}
        """The sessions that have joined, by number."""
        self.reads = NodeReads()
        self._most = limits.nodes
        self._join_throttle = JoinThrottle()
        self._joining = PendingConnections[NodeSession](
            JOIN_WITHIN_S,
            lambda: limits.joining_max(len(self._joined) + len(self._refused_sessions)),
            self._refuse_late,
        )
        """Sessions without a `Join`."""
        self._close_timeouts = Timeouts[WebSocket](CLOSE_WITHIN_S, WebSocket.abort)
        """Sessions that are closing, until the peer's close frame."""
        self._refused_sessions = PendingConnections[NodeSession](
            CLOSE_WITHIN_S, lambda: limits.closing, lambda session: session.abort()
        )
        """Sessions that are closing, because they were refused before their `Join`."""
        self._refusal_log = RefusalLog()
        self._numbers = count(1)
        self._all_gone = asyncio.Event()
        driver.on(Send, self._send)
        driver.on(ReportDegraded, self._report_degraded)
        driver.on(Refuse, self._refuse)
        driver.on(Close, self._end)
        driver.durable_records.watchers.append(self._refusal_log.on_records)

    def open(
        self,
        transport: asyncio.Transport,
        answer: bytes,
        data: bytes,
        caller: Caller = ANYBODY,
        lost: Callable[[Exception | None], None] | None = None,
    ) -> None:
        """Make a session of a caller's connection, and send `answer` to accept its request.

        `data` has the bytes that came after the request. `lost` is called when the connection has ended.
        """
        session = NodeSession(self, self._close_timeouts, caller, lost)
        transport.set_protocol(session)
        session.connection_made(transport)
        transport.write(answer)
        self._joining.add(session, client_network(session.address("peername")))
        if data:
            session.data_received(data)

    def close(self) -> None:
        """Close all sessions: nodes keep their workers, and connect to the next coordinator."""
        for session in [*self._joined.values(), *self._joining]:
            session.close()

    def close_invalid(self, is_invalid: Callable[[Caller], bool]) -> None:
        """Close the sessions of callers that are no longer admitted."""
        for session in [*self._joined.values(), *self._joining]:
            if is_invalid(session.caller):
                names = fields("session_revoked", job=session.job, node=session.node)
                log.info("its token %s is no longer valid, so its session ends", session.caller.name, extra=names)
                session.close(CloseCode.POLICY_VIOLATION, reason=f"the token {session.caller.name} was revoked")

    async def ended(self) -> None:
        """Wait until all sessions have ended. If the peer does not close one, it is aborted after `CLOSE_WITHIN_S`."""
        while self._close_timeouts:
            self._all_gone.clear()
            await self._all_gone.wait()

    @property
    def size(self) -> int:
        """The number of all sessions: with a `Join`, without one, and refused."""
        return len(self._joined) + len(self._joining) + len(self._refused_sessions)

    @property
    def now(self) -> float:
        """The loop's time in seconds."""
        return self._driver.now

    # Effects of the driver

    def _send(self, effect: Send) -> None:
        session = self._joined.get(effect.session)
        if session is not None:
            session.put_frame(session.frame_for(effect.message))

    def _report_degraded(self, effect: ReportDegraded) -> None:
        session = self._joined.get(effect.session)
        if session is not None:
            session.put_if_empty(encode(effect.message, session.version))

    def _refuse(self, effect: Refuse) -> None:
        session, refused = self._joined.get(effect.session), effect.message
        if session is None:  # it has ended
            self._counters.refused[refused.code] += 1
            return
        names = fields("node_refused", job=effect.job, node=effect.node, code=refused.code)
        is_new = self._refusal_log.is_new(effect)
        self._count_refusal(session, refused.code, f"refused: {refused.message}", names, is_new=is_new)
        session.close(message=encode(refused, session.version))

    def _end(self, effect: Close) -> None:
        session = self._joined.get(effect.session)
        if session is not None:
            session.close()

    def _count_refusal(
        self, session: NodeSession, code: RefusalCode, line: str, names: dict[str, Any], *, is_new: bool = True
    ) -> None:
        """Count a refusal; if it `is_new`, log it with these fields, unless there are too many lines."""
        self._counters.refused[code] += 1
        if is_new:
            suffix = self._refusal_log.throttle.line_suffix((session.caller.name, code), self.now)
            if suffix is not None:
                log.warning("%s%s", line, suffix, extra=names)

    # Messages of nodes

    def on_join(self, session: NodeSession, kind: int, message: bytes) -> None:
        """Let a node join by the first message of its session, or refuse it."""
        self._joining.discard(session)
        try:
            join = decode(_binary(kind, message), Join)
            session.caller.check_job(join.job)
            session.caller.check_node(join.node)
        except VersionError as error:
            self._refuse_before_join(session, Refused(RefusalCode.VERSION, str(error), retry=False))
        except SchemaError as error:
            self._refuse_before_join(session, Refused(RefusalCode.MALFORMED, str(error), retry=False))
        except DeniedError as error:
            self._refuse_before_join(session, Refused(RefusalCode.FORBIDDEN, clip(str(error)), retry=False))
        else:
            exceeded = self._exceeded_limit(session, join)
            if exceeded:
                self._refuse_before_join(session, Refused(RefusalCode.LIMIT, exceeded, retry=True))
            else:
                self._begin(session, join, len(message))

    def _exceeded_limit(self, session: NodeSession, join: Join) -> str:
        """Return a text on the limit that a join would exceed; empty if there is none."""
        if len(self._joined) >= self._most:
            return f"this coordinator may have {self._most} nodes with its limit of open files: raise LimitNOFILE"
        if not self._join_throttle.allows((session.caller.name, join.job, join.node), self.now):
            return f"node {join.node} joins more often than {JOINS_PER_S:g} times a second: do its connections break?"
        return ""

    def refuse_flood(self, session: NodeSession) -> None:
        """Refuse a node that sends too many messages."""
        text = f"the node sends more than {FRAMES_PER_S:g} messages a second: is it a nodeclient?"
        refused = Refused(RefusalCode.LIMIT, text, retry=True)
        names = fields("message_flood", job=session.job, node=session.node, peer=session.address("peername"))
        self._count_refusal(session, refused.code, f"refused: {text}", names)
        session.close(CloseCode.POLICY_VIOLATION, encode(refused, session.version))

    def record_malformed(self, session: NodeSession, error: Exception) -> None:
        """Count and log an invalid message."""
        names = fields("message_malformed", job=session.job, node=session.node)
        if not session.number:
            names = fields("peer_refused", peer=session.address("peername"), code=RefusalCode.MALFORMED)
        self._count_refusal(session, RefusalCode.MALFORMED, f"malformed message: {error}", names)

    def on_report(self, session: NodeSession, kind: int, message: bytes) -> None:
        """Deliver a message after the `Join`."""
        try:
            received = decode(_binary(kind, message), Observed, LogChunk, Stacks, Arrivals)
        except SchemaError as error:
            self.record_malformed(session, error)
            refused = Refused(RefusalCode.MALFORMED, str(error), retry=False)
            session.close(message=encode(refused, session.version))
            return
        match received:
            case Observed():
                self._counters.heartbeats += 1 if received.beat else 0
                self._driver.submit(Reported(session.number, received), len(message))
            case LogChunk() | Stacks() | Arrivals():
                self.reads.deliver(session.number, received)

    def on_end(self, session: NodeSession, error: Exception | None) -> None:
        """Remove a session after the end of its connection."""
        self._joining.discard(session)
        self._refused_sessions.discard(session)
        if not self._close_timeouts:
            self._all_gone.set()
        if session.number:
            if error is not None:
                names = fields("connection_lost", job=session.job, node=session.node)
                log.debug("connection lost: %s", error, extra=names)
            del self._joined[session.number]
            self.reads.close(session.number)
            self._driver.submit(Disconnected(session.number))

    def _begin(self, session: NodeSession, join: Join, size: int) -> None:
        session.number = next(self._numbers)
        session.version, session.job, session.node = join.version, join.job, join.node
        self._joined[session.number] = session
        peer = session.address("peername")
        self._refusal_log.of_peers.forget(peer)
        _log_other_versions(join)
        token = session.caller.name
        self._driver.submit(Connected(session.number, join, peer, session.address("sockname"), token), size)
        self.reads.open(session.number, session.ask)

    def _refuse_late(self, session: NodeSession) -> None:
        text = f"no join within {JOIN_WITHIN_S:g} s, or before too many others came"
        self._refuse_before_join(session, Refused(RefusalCode.MALFORMED, text, retry=True))

    def _refuse_before_join(self, session: NodeSession, refused: Refused) -> None:
        peer = session.address("peername")
        # After an upgrade, nodes of the old release retry again and again, so the same text is logged once.
        is_new = self._refusal_log.of_peers.is_new(peer, refused.message)
        names = fields("peer_refused", peer=peer, code=refused.code)
        self._count_refusal(session, refused.code, f"refused: {refused.message}", names, is_new=is_new)
        session.close(CloseCode.POLICY_VIOLATION, encode(refused))
        self._refused_sessions.add(session, client_network(peer))


class NodeSession(WebSocket):
    """The coordinator's end of one node's WebSocket."""

    def __init__(
        self,
        owner: NodeSessions,
        close_timeouts: Timeouts[WebSocket],
        caller: Caller,
        lost: Callable[[Exception | None], None] | None,
    ) -> None:
        super().__init__(FrameReader(masked=True, most=FRAME_BYTES_MAX), close_timeouts)
        self._owner = owner
        self._lost = lost
        self._reader.allowed = FRAMES_AT_ONCE
        self._refilled_at = 0.0
        """When `FrameReader.allowed` was last raised, by the loop's clock."""
        self.caller = caller
        self.number = 0
        """The number of the session; 0 until its `Join`."""
        self.version = PROTOCOL_VERSION
        """The protocol version of the session."""
        self.job = self.node = ""
        self._sent: Desired | None = None
        """The last sent message."""
        self._frame = b""
        """Its frame: most answers to heartbeats repeat the last message."""

    def frame_for(self, message: Desired) -> bytes:
        """Encode and frame a message, unless it is the last one again."""
        if self._sent is not message:
            self._sent, self._frame = message, framed(BINARY, encode(message, self.version))
        return self._frame

    def ask(self, wanted: ReadLog | AskStacks | AskArrivals) -> None:
        """Send the node a request for data, and allow one more frame for its answer."""
        self._reader.allowed += 1
        self.queue(encode(wanted, self.version))

    def address(self, which: str) -> str:
        """Return the IP address of an end: `peername` is the node's, `sockname` is ours."""
        name = self._transport.get_extra_info(which)
        return plain_address(str(name[0])) if name else "unknown"

    def data_received(self, data: bytes) -> None:
        """Handle incoming bytes; raise the number of allowed frames by the elapsed time, when it has become low."""
        if self._reader.allowed < FRAMES_AT_ONCE / 2:
            now = self._owner.now
            more = (now - self._refilled_at) * FRAMES_PER_S
            self._reader.allowed = min(FRAMES_AT_ONCE, self._reader.allowed + more)
            self._refilled_at = now
        super().data_received(data)

    def broken(self, error: FrameError) -> None:
        """Close the connection of a peer that sends too many frames or invalid ones, and log why."""
        if error.code is CloseCode.POLICY_VIOLATION:  # only too many frames have this code
            self._owner.refuse_flood(self)
        else:
            self._owner.record_malformed(self, error)  # the peer gets only a code
            super().broken(error)

    def received(self, kind: int, message: bytes) -> None:
        """Handle one message."""
        if self.number:
            self._owner.on_report(self, kind, message)
        else:
            self._owner.on_join(self, kind, message)

    def ended(self, error: Exception | None) -> None:
        """Handle the end of the connection."""
        self._owner.on_end(self, error)
        if self._lost is not None:
            self._lost(error)


Joiner = tuple[str, str, str]
"""Token, job and node. The token is included, so that the bearer of another one cannot use up a node's joins."""


class JoinThrottle:
    """Limits how often a node may join, because each join costs the coordinator time."""

    def __init__(self) -> None:
        self._remaining: OrderedDict[Joiner, tuple[float, float]] = OrderedDict()
        """How many joins each node had left after its last attempt, and the time of that attempt."""

    def allows(self, joiner: Joiner, now: float) -> bool:
        """Return whether a node may join at `now`, in seconds of a monotonic clock; count the join if it may."""
        remaining, since = self._remaining.pop(joiner, (float(JOINS_AT_ONCE), now))
        remaining = min(JOINS_AT_ONCE, remaining + (now - since) * JOINS_PER_S)
        allowed = remaining >= 1
        self._remaining[joiner] = (remaining - 1 if allowed else remaining, now)
        if len(self._remaining) > JOINERS_MAX:
            self._remaining.popitem(last=False)
        return allowed


def _log_other_versions(join: Join) -> None:
    """Log the release and the protocol version of a node, if they differ from ours."""
    if (join.version, join.release) != (PROTOCOL_VERSION, __version__):
        text = "node %s of job %s: release %s, version %d of the protocol; this coordinator: release %s, version %d"
        names = fields("version_differs", job=join.job, node=join.node, release=join.release, version=join.version)
        theirs, ours = (join.release or "not known", join.version), (__version__, PROTOCOL_VERSION)
        log.info(text, join.node, join.job, *theirs, *ours, extra=names)


def _binary(kind: int, message: bytes) -> bytes:
    if kind != BINARY:
        raise SchemaError("expected a binary frame, not text")
    return message
