"""Nodes' sessions: one WebSocket each, messages in, the newest desired state out.

Messages pass through here unread, except the first of a session, which names the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from coordinatord.core.rounds.effects import Close, Refuse, ReportDegraded, Send
from coordinatord.core.rounds.events import Connected, Disconnected, Reported
from coordinatord.core.rounds.queries.master_address import plain
from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.codec import VersionError, decode, encode
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
from coordinatord.runtime.timers import Patience
from coordinatord.runtime.websocket.frames import BINARY, CloseCode, FrameError, FrameReader, framed
from coordinatord.runtime.websocket.web_socket import WebSocket
from coordinatord.security.gatekeeper import ANYBODY, Caller, DeniedError, site
from coordinatord.server.counters import Counters
from coordinatord.server.driver import Driver
from coordinatord.server.sessions.connection_limits import ConnectionLimits, Unproven
from coordinatord.server.sessions.node_reads import SessionReads
from coordinatord.server.sessions.refusal_log import Refusals

JOINS_AT_ONCE = 30
"""How often a node may join within a moment: a nodeclient waits at least 50 ms before it tries again, so these last for
1.5 s in a network that breaks each connection at once."""

JOINS_PER_S = 2.0
"""How often it may join after that. A nodeclient whose sessions do not last joins about once a second."""

NODES_MAX = 20_000
"""The number of nodes that are remembered; the one that joined longest ago is forgotten."""

Joiner = tuple[str, str, str]
"""The token, the job and the node: with another token nobody can use up what a node has."""


class JoinPace:
    """Bounds how often a node may join: one that joins again and again must not keep the coordinator busy."""

    def __init__(self) -> None:
        self._left: OrderedDict[Joiner, tuple[float, float]] = OrderedDict()
        """The joins that were left to each, and when that was."""

    def allows(self, joiner: Joiner, now: float) -> bool:
        """Return whether a node may join at `now`, in seconds of a monotonic clock, and count the join if so."""
        left, since = self._left.pop(joiner, (float(JOINS_AT_ONCE), now))
        left = min(JOINS_AT_ONCE, left + (now - since) * JOINS_PER_S)
        allowed = left >= 1
        self._left[joiner] = (left - allowed, now)
        if len(self._left) > NODES_MAX:
            self._left.popitem(last=False)
        return allowed


log = logging.getLogger(__name__)

JOIN_WITHIN_S = 10.0
"""A connection without a `Join` by then is not a node's; nodeclient sends it in its first packet."""

FRAMES_AT_ONCE = 256
"""The most frames that may come together. A node sends at most ten heartbeats a second, and waits for an answer for one
lease at most. So even after a long sleep of this host some 50 are unread."""

FRAMES_PER_S = 25.0
"""How many may come in a second after that: ten heartbeats and some changes. Each request to the node allows one more,
for its answer."""

CLOSE_WITHIN_S = 2.0
"""How long to wait for the other side's close frame, so that it can read ours and what came before: a connection that
is closed while the peer still sends is reset, and the peer loses what it has not read."""


class NodeSessions:
    """All nodes' connections."""

    def __init__(self, driver: Driver, counters: Counters, limits: ConnectionLimits) -> None:
        """Submit nodes' messages to this driver, and carry out its effects for nodes."""
        self._driver = driver
        self._counters = counters
        self._open: dict[int, NodeSession] = {}
        """The sessions that have joined, by number."""
        self.reads = SessionReads()
        self._most = limits.nodes
        self._pace = JoinPace()
        self._joining = Unproven[NodeSession](
            JOIN_WITHIN_S, lambda: limits.joining_beside(len(self._open) + len(self._turned_away)), self._refuse_late
        )
        self._parting = Patience[WebSocket](CLOSE_WITHIN_S, WebSocket.abort)
        self._turned_away = Unproven[NodeSession](
            CLOSE_WITHIN_S, lambda: limits.turned_away, lambda session: session.abort()
        )
        """Sessions that were refused before their `Join`, and have not ended yet."""
        self._refusals = Refusals()
        self._numbers = count(1)
        self._all_gone = asyncio.Event()
        driver.on(Send, self._send)
        driver.on(ReportDegraded, self._report_degraded)
        driver.on(Refuse, self._refuse)
        driver.on(Close, self._end)
        driver.shown.watchers.append(self._refusals.record)

    def open(
        self,
        transport: asyncio.Transport,
        answer: bytes,
        data: bytes,
        caller: Caller = ANYBODY,
        lost: Callable[[Exception | None], None] | None = None,
    ) -> None:
        """Make a session of a caller's connection: send the answer to its request, and take in the `data` after that.

        `lost` is called when the connection has ended.
        """
        session = NodeSession(self, self._parting, caller, lost)
        transport.set_protocol(session)
        session.connection_made(transport)
        transport.write(answer)
        self._joining.add(session, site(session.address("peername")))
        if data:
            session.data_received(data)

    def close(self) -> None:
        """End all sessions: the nodes go on and look for the coordinator again."""
        for session in [*self._open.values(), *self._joining]:
            session.close()

    def close_those(self, is_invalid: Callable[[Caller], bool]) -> None:
        """End the sessions of callers who would not be let in any more."""
        for session in [*self._open.values(), *self._joining]:
            if is_invalid(session.caller):
                session.revoked = True
                names = fields("session_revoked", job=session.job, node=session.node)
                log.warning("its token %s is no longer valid, so its session ends", session.caller.name, extra=names)
                session.close(CloseCode.POLICY_VIOLATION)

    async def ended(self) -> None:
        """Wait until all sessions are gone. Those that do not answer are cut off in time."""
        while self._parting:
            self._all_gone.clear()
            await self._all_gone.wait()

    @property
    def size(self) -> int:
        """How many sessions there are, with and without a `Join`, and those that were refused a moment ago."""
        return len(self._open) + len(self._joining) + len(self._turned_away)

    @property
    def now(self) -> float:
        """The loop's time in seconds."""
        return self._driver.now

    # Effects of the driver

    def _send(self, effect: Send) -> None:
        """Send a message; do nothing if the session is already gone."""
        session = self._open.get(effect.session)
        if session is not None:
            session.put_frame(session.frame_for(effect.message))

    def _report_degraded(self, effect: ReportDegraded) -> None:
        session = self._open.get(effect.session)
        if session is not None:
            session.put_if_empty(encode(effect.message, session.version))

    def _refuse(self, effect: Refuse) -> None:
        session = self._open.get(effect.session)
        refused = effect.message
        self._counters.refused[refused.code] += 1
        if session is None:
            return
        if self._refusals.is_new(effect) and (more := self._allow_line(session, refused.code)) is not None:
            names = fields("node_refused", job=effect.job, node=effect.node, code=refused.code)
            log.warning("refused: %s%s", refused.message, more, extra=names)
        session.close(message=encode(refused, session.version))

    def _end(self, effect: Close) -> None:
        session = self._open.get(effect.session)
        if session is not None:
            session.close()

    def _allow_line(self, session: NodeSession, code: RefusalCode) -> str | None:
        """Count a line about a refusal of this kind; return what to add to it, or None if there were too many."""
        return self._refusals.allow(session.caller.name, code, self.now)

    # Messages of nodes

    def on_join(self, session: NodeSession, kind: int, message: bytes) -> None:
        """Let a node in by the first message of its session, or refuse it."""
        self._joining.discard(session)
        try:
            join = decode(_binary(kind, message), Join)
            session.caller.check_job(join.job)
            session.caller.check_node(join.node)
        except VersionError as error:
            self._turn_away(session, Refused(RefusalCode.VERSION, str(error), retry=False))
        except SchemaError as error:
            self._turn_away(session, Refused(RefusalCode.MALFORMED, str(error), retry=False))
        except DeniedError as error:
            self._turn_away(session, Refused(RefusalCode.FORBIDDEN, clip(str(error)), retry=False))
        else:
            obstacle = self._obstacle(session, join)
            if not obstacle:
                self._begin(session, join, len(message))
                return
            self._turn_away(session, Refused(RefusalCode.LIMIT, obstacle, retry=True))

    def _obstacle(self, session: NodeSession, join: Join) -> str:
        """Return which limit keeps a node out for now; empty if none does."""
        if len(self._open) >= self._most:
            return f"this coordinator may have {self._most} nodes with its limit of open files: raise LimitNOFILE"
        if not self._pace.allows((session.caller.name, join.job, join.node), self.now):
            return f"node {join.node} joins more often than {JOINS_PER_S:g} times a second: do its connections break?"
        return ""

    def refuse_flood(self, session: NodeSession) -> None:
        """Refuse a node that sends more than a nodeclient ever does."""
        text = f"the node sends more than {FRAMES_PER_S:g} messages a second: is it a nodeclient?"
        if (more := self._allow_line(session, RefusalCode.LIMIT)) is not None:
            names = fields("message_flood", job=session.job, node=session.node, peer=session.address("peername"))
            log.warning("refused: %s%s", text, more, extra=names)
        self._counters.refused[RefusalCode.LIMIT] += 1
        refused = Refused(RefusalCode.LIMIT, text, retry=True)
        session.close(CloseCode.POLICY_VIOLATION, encode(refused, session.version))

    def record_malformed(self, session: NodeSession, error: Exception) -> None:
        """Count and log what is wrong with what a peer has sent."""
        if (more := self._allow_line(session, RefusalCode.MALFORMED)) is not None:
            of_peer = fields("peer_refused", peer=session.address("peername"), code=RefusalCode.MALFORMED)
            of_node = fields("message_malformed", job=session.job, node=session.node)
            log.warning("malformed message: %s%s", error, more, extra=of_node if session.number else of_peer)
        self._counters.refused[RefusalCode.MALFORMED] += 1

    def on_report(self, session: NodeSession, kind: int, message: bytes) -> None:
        """Deliver a message after the first."""
        try:
            received = decode(_binary(kind, message), Observed, LogChunk, Stacks, Arrivals)
        except SchemaError as error:
            self.record_malformed(session, error)
            refused = Refused(RefusalCode.MALFORMED, str(error), retry=False)
            session.close(message=encode(refused, session.version))
            return
        match received:
            case Observed():
                self._counters.heartbeats += received.beat
                self._driver.submit(Reported(session.number, received), len(message))
            case LogChunk() | Stacks() | Arrivals():
                self.reads.deliver(session.number, received)

    def on_end(self, session: NodeSession, error: Exception | None) -> None:
        """Forget a session whose connection has ended."""
        self._joining.discard(session)
        self._turned_away.discard(session)
        if not self._parting:
            self._all_gone.set()
        if session.number:
            if error is not None:
                names = fields("connection_lost", job=session.job, node=session.node)
                log.debug("connection lost: %s", error, extra=names)
            del self._open[session.number]
            self.reads.close(session.number)
            self._driver.submit(Disconnected(session.number, session.revoked))

    def _begin(self, session: NodeSession, join: Join, size: int) -> None:
        session.number = next(self._numbers)
        session.version, session.job, session.node = join.version, join.job, join.node
        self._open[session.number] = session
        peer = session.address("peername")
        self._refusals.of_peers.forget(peer)
        _note_versions(join)
        token = session.caller.name
        self._driver.submit(Connected(session.number, join, peer, session.address("sockname"), token), size)
        self.reads.open(session.number, session.ask)

    def _refuse_late(self, session: NodeSession) -> None:
        text = f"no join within {JOIN_WITHIN_S:g} s, or before too many others came"
        self._turn_away(session, Refused(RefusalCode.MALFORMED, text, retry=True))

    def _turn_away(self, session: NodeSession, refused: Refused) -> None:
        """Refuse a session before its `Join` counts, and log why."""
        peer = session.address("peername")
        # A node of another release tries again and again, so the same text is logged once.
        is_new = self._refusals.of_peers.is_new(peer, refused.message)
        if is_new and (more := self._allow_line(session, refused.code)) is not None:
            names = fields("peer_refused", peer=peer, code=refused.code)
            log.warning("refused: %s%s", refused.message, more, extra=names)
        self._counters.refused[refused.code] += 1
        session.close(CloseCode.POLICY_VIOLATION, encode(refused))
        self._turned_away.add(session, site(peer))


class NodeSession(WebSocket):
    """A node's connection."""

    __slots__ = (
        "_frame",
        "_lost",
        "_owner",
        "_refilled_at",
        "_sent",
        "caller",
        "job",
        "node",
        "number",
        "revoked",
        "version",
    )

    def __init__(
        self,
        owner: NodeSessions,
        parting: Patience[WebSocket],
        caller: Caller,
        lost: Callable[[Exception | None], None] | None,
    ) -> None:
        super().__init__(FrameReader(masked=True, most=FRAME_BYTES_MAX), parting)
        self._owner = owner
        self._lost = lost
        self._reader.left = FRAMES_AT_ONCE
        self._refilled_at = 0.0
        self.caller = caller
        self.revoked = False
        """Whether the caller's token is no longer valid."""
        self.number = 0
        """The number of the session; 0 until its `Join`."""
        self.version = PROTOCOL_VERSION
        """The protocol version of the session."""
        self.job = self.node = ""
        self._sent: Desired | None = None
        """The last message that was sent."""
        self._frame = b""
        """The frame of the last message: most answers to heartbeats repeat it."""

    def frame_for(self, message: Desired) -> bytes:
        """Return a message in its frame; each is encoded once."""
        if self._sent is not message:
            self._sent, self._frame = message, framed(BINARY, encode(message, self.version))
        return self._frame

    def ask(self, wanted: ReadLog | AskStacks | AskArrivals) -> None:
        """Send a request for what the node alone has, and allow one more frame, for its answer."""
        self._reader.left += 1
        self.put_beside(encode(wanted, self.version))

    def address(self, which: str) -> str:
        """Return the address of either end: `peername` or `sockname`."""
        name = self._transport.get_extra_info(which)
        return plain(str(name[0])) if name else "unknown"

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived, unless too much does."""
        if self._reader.left < FRAMES_AT_ONCE / 2:
            now = self._owner.now
            more = (now - self._refilled_at) * FRAMES_PER_S
            self._reader.left = min(max(FRAMES_AT_ONCE, self._reader.left), self._reader.left + more)
            self._refilled_at = now
        super().data_received(data)

    def broken(self, error: FrameError) -> None:
        """End the connection of a peer that broke a rule of WebSockets; refuse one that sent a flood, with a reason."""
        if error.code is CloseCode.POLICY_VIOLATION:
            self._owner.refuse_flood(self)
        else:
            self._owner.record_malformed(self, error)  # the peer hears a code alone
        super().broken(error)

    def received(self, kind: int, message: bytes) -> None:
        """Take in one message."""
        if self.number:
            self._owner.on_report(self, kind, message)
        else:
            self._owner.on_join(self, kind, message)

    def ended(self, error: Exception | None) -> None:
        """Take note that the connection has ended."""
        self._owner.on_end(self, error)
        if self._lost is not None:
            self._lost(error)


def _note_versions(join: Join) -> None:
    """Log a node's versions, if they are not those of this coordinator."""
    if (join.version, join.release) != (PROTOCOL_VERSION, __version__):
        text = "node %s of job %s: release %s, version %d of the protocol; this coordinator: release %s, version %d"
        names = fields("version_differs", job=join.job, node=join.node, release=join.release, version=join.version)
        theirs, ours = (join.release or "not known", join.version), (__version__, PROTOCOL_VERSION)
        log.info(text, join.node, join.job, *theirs, *ours, extra=names)


def _binary(kind: int, message: bytes) -> bytes:
    if kind != BINARY:
        raise SchemaError("expected a binary frame, not text")
    return message
