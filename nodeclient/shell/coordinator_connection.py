"""The node's session with the coordinator: connects, reconnects, and carries messages. It decides nothing.

A session is one WebSocket to one of several coordinators. An attempt may open several sessions, one after the other:
in an older version of the protocol if the newest is refused, and without a token where that is allowed.

Attempts are separated by pauses that grow and are random, so that a thousand nodes do not connect at the moment when a
coordinator is back. After a session, the first attempt goes to the same coordinator, unless it fell silent or had not
let the node in. Each further attempt goes to the next coordinator in the list. Only a leader that a standby names is
tried without a pause.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from msgspec import structs

from coordinatord.protocol.access_token import AccessToken, Role
from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.log_messages import LogChunk, ReadLog
from coordinatord.protocol.messages import (
    FRAME_BYTES_MAX,
    SESSION_PATH,
    Degraded,
    Desired,
    Join,
    Observed,
    RefusalCode,
    Refused,
)
from coordinatord.protocol.schema import SchemaError
from coordinatord.protocol.stack_messages import AskStacks, Stacks
from coordinatord.protocol.text import clip
from coordinatord.protocol.versions import SUPPORTED
from coordinatord.runtime.logs import fields
from coordinatord.runtime.tasks import in_thread
from coordinatord.runtime.tcp_options import retransmit_steadily
from coordinatord.runtime.timers import Timeouts
from coordinatord.runtime.websocket.frames import BINARY, CloseCode
from coordinatord.runtime.websocket.handshake import HandshakeError
from coordinatord.runtime.websocket.web_socket import WebSocket
from coordinatord.runtime.websocket.web_socket_client import WebSocketClient
from nodeclient.access.contact_points import STANDBY_STATUS, ContactPoint, ContactPoints, addresses_of, leader_in
from nodeclient.access.keyring import INSECURE_ACCESS, AccessSettings
from nodeclient.access.secured_attempt import AccessError, PlaintextError, SecuredAttempt, WrongAccessError
from nodeclient.core.events import CoordinatorDegraded, DesiredReceived, Event, SessionClosed, SessionOpened, TurnedAway
from nodeclient.output.log_reader import refused_chunk

log = logging.getLogger(__name__)

CONNECT_WITHIN_S = 5.0
"""The timeout of an attempt: one lease, since a node that takes longer would be lost before its session began."""

REACH_WITHIN_S = 1.0
"""The timeout of a TCP connection if there is another coordinator to try. A host that is gone does not answer, but even
a busy one answers at once: its kernel accepts connections."""

CLOSE_WITHIN_S = 0.5
"""How long to wait for a close frame."""

PAUSE_FIRST_S = 0.1
PAUSE_MOST_S = 1.0
"""The longest pause between attempts: nodes are back within about a second after the coordinator. The first pause fits
a restart of the daemon."""

RESOLVE_WITHIN_S = 1.0
"""How long to wait for the addresses of a coordinator's name. A name server that is away takes 10 s to be given up."""

NEXT_ADDRESS_S = 0.25
"""The delay between the attempts at the several addresses of a name (RFC 8305, 5)."""

TURNED_AWAY_MOST_S = 10.0
"""The longest pause if the coordinator has no place for this node until a person makes one, which takes minutes."""

READ_WITHIN_S = 5.0
"""How long to wait for the files of tokens and certificates. A file system that takes longer counts as hanging."""

WRONG_FOR_S = 3.0
"""How long all attempts must fail because of a wrong token, or --insecure, before that is final. A coordinator knows of
a new token within a second, and those that share a store within two."""

CUT_SHORT = (HandshakeError, ConnectionError)
"""The errors of a node that connects in the clear to a coordinator that serves TLS."""

UNPROVEN = (
    "%s serves in the clear, so this node cannot verify which coordinator answers there, although it has a token: with"
    " --token-file FILE, it connects only to the coordinator of that token"
)

DENIALS = frozenset({401, 403, 429})
"""The HTTP statuses by which a coordinator denies access."""

DESCRIPTION = re.compile(r'error_description="([^"]*)"')
"""The reason in the header of a denial (RFC 6750, section 3)."""

ERRNO = re.compile(r"\[Errno (\d+)\]")
"""An error number in the text that asyncio makes of the errors of several addresses. The first one counts."""

Request = ReadLog | AskStacks | AskArrivals
"""The questions of a coordinator, which it asks for its users or to find a hang."""

Answer = Callable[..., None]
"""Sends the answer to a request: a `LogChunk`, `Stacks` or `Arrivals`, and optionally a function to call afterwards."""


def refuse_request(wanted: Request, answer: Answer) -> None:
    """Refuse a request, since this is the node of a torchrun: it keeps no log files and cannot ask its workers."""
    problem = "this node cannot ask its workers: torchrun has started them"
    match wanted:
        case ReadLog():
            answer(refused_chunk(wanted, "this node keeps no log files"))
        case AskStacks():
            answer(Stacks(wanted.request, (), problem))
        case AskArrivals():
            answer(Arrivals(wanted.request, 0.0, 0.0, (), problem))


class JoinAttempts:
    """Prepares attempts to join: reads tokens and certificates, anew for each, since a user may replace them meanwhile.

    It prepares at most one attempt at a time, so that a file system that hangs blocks one thread.
    """

    def __init__(self, settings: AccessSettings) -> None:
        self.settings = settings
        self.proven: AccessToken | None = None
        """The token that let this node in last. While it is valid, the coordinator refuses the node with any other."""
        self._reading: asyncio.Future[SecuredAttempt] | None = None
        """The attempt whose files are being read."""

    async def prepare(self, coordinator: Endpoint) -> SecuredAttempt:
        """Return an attempt with its tokens and certificates. Raises `AccessError`; `OSError` if no thread starts."""
        if self._reading is not None:  # the last call gave up; its result would be out of date, and is not used
            await asyncio.wait([self._reading], timeout=READ_WITHIN_S)
        if self._reading is None or self._reading.done():
            read = partial(SecuredAttempt, self.settings, coordinator, Role.JOIN, self.proven)
            self._reading = in_thread(read, "access")
            await asyncio.wait([self._reading], timeout=READ_WITHIN_S)
        if not self._reading.done():
            raise AccessError(
                f"the files of tokens and certificates were not read within {READ_WITHIN_S:g} s: their file system "
                "hangs, or a token is in a pipe that nobody writes to; copy them to a local disk"
            )
        reading, self._reading = self._reading, None
        return reading.result()


class CoordinatorAddresses:
    """Looks up the names of coordinators, and remembers at which address each one has let this node in.

    As long as a name can be resolved, it is used, since a coordinator may move. Otherwise the address is used.
    """

    def __init__(self) -> None:
        self._look_ups: dict[Endpoint, asyncio.Future[tuple[str, ...]]] = {}
        """The look-ups in progress: one for each name, since a thread may hang in it."""
        self._remembered: dict[Endpoint, str] = {}

    async def look_up(self, coordinator: Endpoint) -> tuple[str, ...]:
        """Return the addresses of a name; none if it has none. If they come late, the next call returns them."""
        try:
            looking = self._look_ups.pop(coordinator, None) or in_thread(partial(addresses_of, coordinator), "names")
        except OSError:  # the system has no thread to give; the attempt to connect says so
            return ()
        await asyncio.wait([looking], timeout=RESOLVE_WITHIN_S)
        if looking.done():
            return looking.result()
        self._look_ups[coordinator] = looking
        return ()

    def remembered(self, coordinator: Endpoint) -> ContactPoint:
        """Return the coordinator at the address that is remembered, if one is."""
        return ContactPoint(coordinator, self._remembered.get(coordinator))

    def remember(self, coordinator: Endpoint, address: str) -> None:
        """Remember an address; the next look-up is a new one."""
        self._remembered[coordinator] = address
        self._look_ups.pop(coordinator, None)

    def forget(self, coordinator: Endpoint) -> None:
        """Forget the address of a coordinator."""
        self._remembered.pop(coordinator, None)


@dataclass(slots=True)
class _AttemptResult:
    """How an attempt went, and its session if there was one."""

    let_in: bool = False
    """Whether the coordinator has let the node in. If not, pauses grow."""
    turned_away: bool = False
    """Whether the coordinator has refused this node in its session, and will until a person or another node acts. Not
    set if the handshake was denied, since a coordinator learns of a new token within a second."""
    leader: Endpoint | None = None
    """The leader that the coordinator, a standby, has named."""
    timed_out: bool = False
    """Whether there was no answer in time."""
    leaves_token_in_doubt: bool = False
    """Whether a token that was denied before still counts as wrong: it was denied again, or a standby answered. A
    standby lets no node in, so its answer says nothing about the token."""
    why_aborted: str = ""
    """Why this node has aborted the session, which it does if the coordinator is silent; empty if it has not."""


class CoordinatorConnection:
    """Keeps a connection to one of several coordinators, while `run` runs."""

    def __init__(
        self,
        coordinators: Sequence[Endpoint],
        access: AccessSettings,
        *,
        make_join: Callable[[], Join],
        submit: Callable[[Event], None],
        read: Callable[[Request, Answer], None] = refuse_request,
    ) -> None:
        """Begin unconnected.

        `access` says where tokens may be. `make_join` returns the node's present `Join`. `submit` gets the messages of
        the coordinator, and `read` its requests for logs, stacks and arrivals.
        """
        self.close_timeouts = Timeouts[WebSocket](CLOSE_WITHIN_S, WebSocket.abort)
        """The timeouts of all sessions that wait for a close frame."""
        self._contacts = ContactPoints(coordinators)
        self._addresses = CoordinatorAddresses()
        self._attempts = JoinAttempts(access)
        self._make_join = make_join
        self._submit = submit
        self._read = read
        self._session: _CoordinatorSession | None = None
        """The open session; None without one."""
        self._result = _AttemptResult()
        """The result of the present or last attempt."""
        self._wrong_since: float | None = None
        """When attempts began to fail because of a wrong token; None if they do not."""
        self.is_child: Callable[[Endpoint], bool] = lambda _: False
        """Tells whether the coordinator at an endpoint is a child of this process, and so need not be verified."""

    def send(self, observed: Observed) -> None:
        """Send the state of the node if there is a connection. Otherwise the next `Join` carries it."""
        if self._session is not None:
            self._session.put(encode(observed, self._session.version))

    def close(self, reason: str) -> None:
        """End the present connection, in which the coordinator has fallen silent, for this reason, and reconnect."""
        self._result.why_aborted = reason
        if self._session is not None:
            self._session.abort()  # to wait for a close frame would delay the next attempt

    async def run(self) -> None:
        """Connect and carry messages until cancelled."""
        pause = PAUSE_FIRST_S
        while True:
            contact = self._contacts.current
            by_name = contact.address is None
            # The connection resolves the name itself. This look-up tells whether it can, and which addresses there are.
            addresses = await self._addresses.look_up(contact.coordinator) if by_name else ()
            if by_name and not addresses:
                contact = self._addresses.remembered(contact.coordinator)
            reason = await self._attempt(contact)
            result = self._result
            if not result.leaves_token_in_doubt:
                self._wrong_since = None
            self._submit(SessionClosed(reason))
            silent = result.timed_out or bool(result.why_aborted)
            # If the address may not be the coordinator's, all addresses of the name are tried in turn.
            tries_all = by_name and result.leader is None and (silent or not result.let_in)
            if tries_all and result.let_in:  # the session may have lasted for days
                addresses = await self._addresses.look_up(contact.coordinator)
            without_pause = self._contacts.record_attempt(
                asyncio.get_running_loop().time(),
                served=result.let_in,
                silent=silent,
                leader=result.leader,
                addresses=addresses if tries_all else (),
            )
            if not without_pause:
                pause = pause_after(pause, let_in=result.let_in, turned_away=result.turned_away)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, keeps no secret

    async def _attempt(self, contact: ContactPoint) -> str:
        """Attempt a session in the newest version that both sides know; return why it ended or did not begin."""
        self._result = _AttemptResult()
        coordinator = contact.coordinator
        refused: Refused | None = None
        try:
            for version in SUPPORTED:
                ended = await self._attempt_in(version, contact)
                if isinstance(ended, str):
                    return ended
                refused = refused or ended  # the first refusal names the versions of both sides
        except AccessError as error:
            return self._deny(coordinator, str(error), wrong=isinstance(error, WrongAccessError))
        except (HandshakeError, OSError, TimeoutError, UnicodeError) as error:
            reason, status = _explain(coordinator, error), error.status if isinstance(error, HandshakeError) else None
            if status in DENIALS:
                return self._deny(coordinator, reason, wrong=status != HTTPStatus.TOO_MANY_REQUESTS)
            if isinstance(error, HandshakeError) and status == STANDBY_STATUS:
                self._result.leader, self._result.leaves_token_in_doubt = leader_in(error.location), True
            self._result.timed_out = isinstance(error, TimeoutError)
            return reason
        assert refused is not None  # noqa: S101 - a session ends with a reason, or with a refusal of its version
        self._submit(TurnedAway(refused))
        return refused.message

    def _deny(self, coordinator: Endpoint, reason: str, *, wrong: bool) -> str:
        """Report that a coordinator denies access, and return the reason; `wrong` stands for a `WrongAccessError`."""
        retry, final_within_s = True, None
        if wrong:
            self._addresses.forget(coordinator)  # another coordinator may have that address now
            now = asyncio.get_running_loop().time()
            self._result.leaves_token_in_doubt = True
            self._wrong_since = now if self._wrong_since is None else self._wrong_since
            wrong_until = self._wrong_since + WRONG_FOR_S
            # The first denial after `wrong_until` is final; it comes at most one pause later.
            retry, final_within_s = now < wrong_until, wrong_until + PAUSE_MOST_S - now
        self._submit(TurnedAway(Refused(RefusalCode.FORBIDDEN, reason, retry=retry), final_within_s))
        return reason

    async def _attempt_in(self, version: int, contact: ContactPoint) -> str | Refused:
        """Attempt a session in one version, and hold it until it ends; return why, or the refusal of the version.

        If the token that let the node in last is denied, try again with another one. If the coordinator has no TLS, try
        again in the clear where that is allowed. Raises `AccessError`, and errors of connections.
        """
        attempts = self._attempts
        attempt = await attempts.prepare(contact.coordinator)
        try:
            return await self._run_session(_CoordinatorSession(self, contact, version, attempt))
        except (HandshakeError, OSError) as error:
            if attempts.proven is not None and isinstance(error, HandshakeError) and error.status in DENIALS:
                attempts.proven = None  # it was revoked, and there may be a newer one in its place
                return await self._attempt_in(version, contact)
            problem = await _access_problem(contact, attempt, error)
            if problem is None:
                raise
            # A coordinator that a node has started has no TLS. If this program was given a token, its coordinator has
            # TLS. A token that was only found in the user's directory may be for another coordinator.
            may_have_no_tls = attempts.settings.plaintext_allowed and not attempts.settings.is_given
            if not may_have_no_tls or not isinstance(problem, PlaintextError):
                raise problem from error
        in_the_clear = SecuredAttempt(INSECURE_ACCESS, contact.coordinator, Role.JOIN)
        return await self._run_session(_CoordinatorSession(self, contact, version, in_the_clear), token_unused=True)

    async def _run_session(self, session: _CoordinatorSession, *, token_unused: bool = False) -> str | Refused:
        """Hold one session; return why it ended, or the refusal of the version.

        With `token_unused`, warn the user that the session is in the clear although a token was found here, unless
        this process has started the coordinator.
        """
        loop, tls = asyncio.get_running_loop(), session.attempt.context
        contact, coordinator = session.contact, session.contact.coordinator
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S if self._contacts.is_only_one else REACH_WITHIN_S) as patience:

                def reached() -> _CoordinatorSession:
                    # asyncio calls this when TCP is connected, before the handshake of TLS. A connected host gets more
                    # time to answer, unless its coordinator fell silent just now.
                    patience.reschedule(
                        loop.time() + (REACH_WITHIN_S if self._contacts.is_suspect else CONNECT_WITHIN_S)
                    )
                    return session

                await loop.create_connection(
                    reached,
                    contact.address or coordinator.host,
                    coordinator.port,
                    ssl=tls,
                    server_hostname=None if tls is None else coordinator.host,
                    happy_eyeballs_delay=NEXT_ADDRESS_S,
                )
                await session.agreed
            if token_unused and not self.is_child(coordinator):
                log.warning(UNPROVEN, coordinator, extra=fields("unproven_coordinator"))
            await session.lost.wait()
        finally:
            self._session = None
            await session.finish()
            if session.is_denied and session.ending is None:  # without a refusal before
                self._attempts.proven = None  # it was revoked, and there may be a newer one in its place
        if session.bug is not None:
            raise session.bug
        return self._result.why_aborted or session.ending or session.reason or "the coordinator closed the connection"

    # What the session calls

    def begin(self, session: _CoordinatorSession) -> None:
        """Send the first message of a session that is open now."""
        self._session = session
        session.put(encode(structs.replace(self._make_join(), version=session.version), session.version))
        self._submit(SessionOpened(str(session.contact.coordinator)))

    def receive(self, session: _CoordinatorSession, kind: int, message: bytes) -> str | Refused | None:
        """Hand a message to the node; return why it ends the session, None if it does not."""
        if kind != BINARY:
            return "the coordinator sent a text frame"
        try:
            received = decode(message, Desired, Degraded, Refused, ReadLog, AskStacks, AskArrivals)
        except SchemaError as error:
            return f"the coordinator sent a malformed message: {error}"
        match received:
            case Refused(RefusalCode.VERSION):
                return received
            case Refused(code, text):
                self._result.turned_away = code in {RefusalCode.DRAINED, RefusalCode.LIMIT, RefusalCode.FORBIDDEN}
                self._submit(TurnedAway(received))
                return text
            case ReadLog() | AskStacks() | AskArrivals():
                self._read(received, session.answer)
            case Desired() | Degraded():
                self._result.let_in, self._attempts.proven = True, session.attempt.sent_token
                self._addresses.remember(session.contact.coordinator, session.address)
                self._submit(
                    DesiredReceived(received) if isinstance(received, Desired) else CoordinatorDegraded(received)
                )
        return None


class _CoordinatorSession(WebSocketClient):
    """One connection to a coordinator."""

    def __init__(
        self, owner: CoordinatorConnection, contact: ContactPoint, version: int, attempt: SecuredAttempt
    ) -> None:
        super().__init__(str(contact.coordinator), SESSION_PATH, FRAME_BYTES_MAX, owner.close_timeouts)
        self._owner = owner
        self.attempt = attempt
        self.contact = contact
        self.version = version
        self.address = ""
        """The address of the coordinator, once the session is open."""
        self.ending: str | Refused | None = None
        """Why a message has ended the session; None if none has."""

    @property
    def is_denied(self) -> bool:
        """Whether the coordinator has closed the session for its policy: it refused the node, or revoked its token."""
        return self.peer_close[:2] == CloseCode.POLICY_VIOLATION.to_bytes(2)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        retransmit_steadily(transport.get_extra_info("socket"))
        super().connection_made(transport)

    def headers(self) -> Mapping[str, str]:
        """Return the header with the token, which only the coordinator of that token receives."""
        return self.attempt.headers

    def opened(self) -> None:
        # A peer that was gone when the transport was made has no name, and opens no session.
        self.address = self._transport.get_extra_info("peername")[0]
        self._owner.begin(self)

    def received(self, kind: int, message: bytes) -> None:
        """Hand a message to the node, and close the connection if the message ends the session."""
        self.ending = self._owner.receive(self, kind, message)
        if self.ending is not None:
            self.close()

    def answer(self, answer: LogChunk | Stacks | Arrivals, sent: Callable[[], None] = lambda: None) -> None:
        """Answer a request of this session; call `sent` when the answer is on its way."""
        self.queue(encode(answer, self.version), sent)


def pause_after(pause_s: float, *, let_in: bool, turned_away: bool) -> float:
    """Return the longest pause after an attempt, in seconds; `pause_s` was the longest one before it."""
    if let_in:
        return PAUSE_FIRST_S
    return min(2 * pause_s, TURNED_AWAY_MOST_S if turned_away else PAUSE_MOST_S)


async def _access_problem(
    contact: ContactPoint, attempt: SecuredAttempt, error: HandshakeError | OSError
) -> AccessError | None:
    """Explain a failed attempt by tokens, keys or TLS; return None for any other cause, and for other denials."""
    status = error.status if isinstance(error, HandshakeError) else None
    # A 403 is about the rights of a valid token, and names it. With a 401 or a 429, the text names the token's source.
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS} and attempt.token_source:
        text = f"{_explain(contact.coordinator, error)} (this node's token is from {attempt.token_source})"
        return (WrongAccessError if status == HTTPStatus.UNAUTHORIZED else AccessError)(text)
    speaks_tls = partial(attempt.speaks_tls, contact.address)
    if attempt.context is None and isinstance(error, CUT_SHORT) and await in_thread(speaks_tls, "tls"):
        return attempt.tls_required()
    return attempt.explain(error)


def _explain(coordinator: Endpoint, error: BaseException) -> str:
    match error:
        case TimeoutError():
            return f"no answer from {coordinator} in time"
        case socket.gaierror() | UnicodeError():  # UnicodeError: not a host name at all
            return f"the host name {coordinator.host} cannot be resolved"
        case HandshakeError():
            return f"{coordinator}{_describe(error)}"
        case OSError():
            several = ERRNO.search(str(error))
            number = error.errno or (int(several[1]) if several else 0)
            return f"{coordinator}: {os.strerror(number) if number else error}"
        case _:
            return f"{coordinator}: {error}"


def _describe(error: HandshakeError) -> str:
    """Describe an answer that opens no session, in words that follow the coordinator's name."""
    if error.status is None:
        return " does not answer in HTTP: is it a coordinatord?"
    if error.status == STANDBY_STATUS and (leader := leader_in(error.location)) is not None:
        return f" stands by: {leader} leads"
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return f" {clip(error.reason or 'cannot serve now: it may be starting or stopping')}"
    if error.status == HTTPStatus.BAD_REQUEST and error.reason:
        return f": {clip(error.reason)}"
    if error.status not in DENIALS:
        return f" answers with HTTP {error.status}: is it a coordinatord?"
    found = DESCRIPTION.search(error.challenge)
    return f": {clip(found[1]) if found else f'HTTP {error.status}, this node is not let in'}"
