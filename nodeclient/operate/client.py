"""Sends requests to coordinators over HTTP: reads, commands, and event streams. Plain `http.client`, no event loop.

Each request is a function that asks one contact point: a coordinator by its name, or at one address. The client calls
it for one after the other until one answers, and follows a standby to the leader that it names. It skips coordinators
that are silent; if the leader is silent, it waits for a standby to take over. A command is sent to one coordinator, at
most once: if its answer is lost or is not that of a coordinatord, nobody knows whether it was done. Commands that wait
or follow `repeat` a read, so that they outlast a coordinator's restart.

Every failure is a `RequestError`, one line with the address and the reason. `protocol.http` defines the answers.
"""

from __future__ import annotations

import http.client
import math
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from http import HTTPMethod, HTTPStatus
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from msgspec import json, msgpack

from coordinatord.protocol.access_token import BEARER, Role
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import AdminBody, ErrorAnswer, PageLinkBody
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.schema import ERRORS, SchemaError, check
from coordinatord.protocol.text import clip
from coordinatord.runtime.local_time import now
from nodeclient.access.contact_points import ADDRESSES_MAX, STANDBY_STATUS, ContactPoint, addresses_of, leader_in
from nodeclient.access.keyring import AccessSettings
from nodeclient.access.secured_attempt import PROBE_WITHIN_S, AccessError, SecuredAttempt

ANSWER_WITHIN_S = 10.0
"""The timeout of a request: a person waits no longer, and a coordinator answers in milliseconds."""

REACH_WITHIN_S = 2.0
"""The timeout of a connection, if there is another coordinator to try."""

TAKEOVER_WITHIN_S = 10.0
"""How long all coordinators are retried if the leader does not answer: twice a lease."""

LEAST_S = 0.1
"""How long a request may take at least, even if the time of the command is over."""

RETRY_AFTER_S = 0.5
"""The pause before all coordinators are retried."""

REPEAT_EVERY_S = 1.0
"""The interval of repeated reads: nodes report once a second, and a restarted coordinator serves within a second."""

ASK_NEXT_AFTER_S = 1.0
"""How long a coordinator may take before the next one is asked too: a hundred times the usual time of an answer."""

HEALTH_PATH = "/healthz"
"""The path that needs no token, even on a standby."""

SILENT_S_MAX = 45.0
"""How long a stream may be silent: a coordinator sends a comment every 15 s, and two of them may be lost."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""The limit of an answer. The largest one is about 20,000 nodes, the limit of a coordinator, with some 300 bytes for
each. This is ten times as much."""

EVENT_BYTES_MAX = 256 * 1024
"""The limit of one line of a stream. A reason has 4,096 characters at most, and JSON may need 6 bytes for each. This is
ten times as much."""

Answer = TypeVar("Answer")
Result = TypeVar("Result")

EXIT_CODES: dict[int, ExitCode] = {
    HTTPStatus.BAD_REQUEST: ExitCode.USAGE,
    HTTPStatus.UNAUTHORIZED: ExitCode.REFUSED,
    HTTPStatus.FORBIDDEN: ExitCode.REFUSED,
    HTTPStatus.CONFLICT: ExitCode.REFUSED,
    HTTPStatus.SERVICE_UNAVAILABLE: ExitCode.TEMPFAIL,
}
"""The exit codes by the HTTP status of an error."""

MSGPACK = "application/msgpack"
STREAM = "text/event-stream"


class RequestError(OperationalError):
    """The request failed, or its answer is malformed; the text says why."""

    def __init__(self, text: str, exit_code: ExitCode = ExitCode.UNAVAILABLE) -> None:
        super().__init__(clip(text))
        self.exit_code = exit_code


class UnknownNameError(RequestError):
    """The coordinator knows no such job, or no such node."""


class LostError(RequestError):
    """No coordinator answers, or the connection was lost; a read may be retried."""


def pause(seconds: float) -> None:
    """Wait for some seconds."""
    select.select([], [], [], seconds)


def read(kind: type[Answer], data: Any, where: str = "answer") -> Answer:
    """Convert decoded data to a record of `protocol.http`. Raises `RequestError`, which names the field."""
    try:
        return check(data, kind, where)
    except SchemaError as error:
        raise RequestError(f"the answer is not that of a coordinatord ({error}): see --coord") from error


def repeat(
    request: Callable[[], Iterable[Result]], *, answered: bool = True, ends_at: float = math.inf
) -> Iterator[Result]:
    """Repeat a request once a second until `ends_at` (monotonic clock, in seconds), and yield all results.

    `request` sends it once and returns its results: a single answer, or those of a stream. `answered` tells whether a
    coordinator has answered this command already. Before an answer every error is raised, and later only lasting ones.
    """
    is_warned = False
    while True:
        asked_at = time.monotonic()
        try:
            for result in request():
                answered, is_warned = True, False
                yield result
        except RequestError as error:
            is_temporary = isinstance(error, LostError) or error.exit_code is ExitCode.TEMPFAIL
            if not (answered and is_temporary):
                raise
            if not is_warned:
                sys.stderr.write(f"nodeclient: {error}; trying again\n")
            is_warned = True
        if time.monotonic() >= ends_at:
            return
        pause(max(0.0, min(asked_at + REPEAT_EVERY_S, ends_at) - time.monotonic()))


class _WrongAnswerError(OperationalError):
    """The server is no coordinatord, or its answer is malformed, or it stands by and its leader has not answered."""


class _NotServedError(_WrongAnswerError):
    """The server is no coordinatord, and has done nothing."""


class _StandbyError(OperationalError):
    """The coordinator is a standby, and has done nothing."""

    def __init__(self, leader: Endpoint | None, reason: str = "stands by, and names no leader") -> None:
        """Make the error with the leader that the standby names, or else the reason why nobody leads."""
        super().__init__(reason)
        self.leader = leader


class _SilentLeaderError(OperationalError):
    """A standby names a leader that does not answer. Neither has done anything."""


class _UnknownTokenError(RequestError):
    """The coordinator does not accept the token."""


class _UnknownOutcomeError(RequestError):
    """A command was sent, at least in part, and no coordinatord has answered: a proxy may have, or nobody."""


_ADDRESS_ERRORS = (OSError, UnicodeError, http.client.HTTPException, _WrongAnswerError, _StandbyError)
"""Errors of one address, after which the next one is tried."""


class Client:
    """Sends requests to the first of several coordinators that answers."""

    def __init__(self, coordinators: Sequence[Endpoint], access: AccessSettings, ends_at: float = math.inf) -> None:
        """Send requests to the first of these `coordinators` that answers, with a token from `access`.

        No request waits beyond `ends_at`, in seconds of the monotonic clock.
        """
        self._coordinators = tuple(coordinators)
        self._contacts = [ContactPoint(coordinator) for coordinator in coordinators]
        """The contact points for the next request, in the order of trying."""
        self._access = access
        self._ends_at = ends_at
        self.certificate: bytes | None = None
        """The certificate of the last coordinator, in DER; None without TLS."""

    @property
    def where(self) -> str:
        """The coordinator that answered last; the first one before any answer."""
        return str(self._contacts[0].coordinator)

    def _within(self, seconds: float) -> float:
        """Return how long a wait of at most these `seconds` may take, so that it ends at `ends_at`."""
        return min(seconds, max(LEAST_S, self._ends_at - time.monotonic()))

    def get(self, path: str) -> Any:
        """Return the decoded answer to a read. Raises `RequestError`, as the other methods do."""

        def ask(contact: ContactPoint) -> Any:
            with self._connected(contact, Role.READ) as (connection, headers):
                return _decode(_get(connection, path, {"Accept": MSGPACK, **headers}))

        return self._with_failover(ask)

    def post(self, path: str, body: AdminBody | PageLinkBody) -> Any:
        """Send a command, at most once if it changes something; return the decoded answer."""

        def ask(contact: ContactPoint) -> Any:
            self._check_certificate(contact)
            with self._connected(contact, Role.ADMIN) as (connection, token):
                try:
                    headers = {"Accept": MSGPACK, "Content-Type": MSGPACK, **token}
                    connection.request(HTTPMethod.POST, path, msgpack.encode(body), headers)
                    return _decode(connection.getresponse())
                except _NotServedError:
                    raise
                except (OSError, http.client.HTTPException, _WrongAnswerError) as error:
                    if isinstance(body, PageLinkBody):
                        raise  # a link that nobody has received changes nothing
                    raise _UnknownOutcomeError(
                        f"{contact}: {_reason_of(error)}, so it is not known whether it was done: see nodeclient events"
                    ) from error

        return self._with_failover(ask)

    def events(self, path: str, after: str | None) -> Iterator[Any]:
        """Yield decoded events as they come: those after the event with this id, or all. Ends with `LostError`."""
        headers = {"Accept": f"{STREAM}, {MSGPACK}"}  # MSGPACK is for errors
        if after is not None:
            headers["Last-Event-ID"] = after

        def ask(contact: ContactPoint) -> tuple[ExitStack, http.client.HTTPResponse]:
            with ExitStack() as stack:
                connection, token = stack.enter_context(self._connected(contact, Role.READ))
                opened = connection.sock  # `getresponse` may take it from the connection
                answer = _get(connection, path, {**headers, **token})
                opened.settimeout(self._within(SILENT_S_MAX))
                if answer.status != HTTPStatus.OK:
                    _decode(answer)
                if not (answer.getheader("Content-Type") or "").startswith(STREAM):
                    raise _WrongAnswerError("does not send a stream of events, as a coordinatord does")
                return stack.pop_all(), answer  # the connection stays open, and `events` closes it

        connection, answer = self._with_failover(ask)
        with connection:
            try:
                yield from _event_data(answer)
            except _ADDRESS_ERRORS as error:
                raise LostError(f"{self.where}: {_reason_of(error)}") from error
        raise LostError(f"{self.where}: it has closed the connection")

    @contextmanager
    def _connected(
        self, contact: ContactPoint, role: Role
    ) -> Iterator[tuple[http.client.HTTPConnection, dict[str, str]]]:
        """Yield a connection to a coordinator with a checked key, and the headers to send. Raises `AccessError`."""
        coordinator = contact.coordinator
        attempt = SecuredAttempt(self._access, coordinator, role)
        connection = http.client.HTTPConnection(coordinator.host, coordinator.port)
        with closing(connection):
            is_only = contact.address is None and self._contacts == [contact]
            reach_within_s = ANSWER_WITHIN_S if is_only else REACH_WITHIN_S
            address = (contact.address or coordinator.host, coordinator.port)
            connection.sock = socket.create_connection(address, self._within(reach_within_s))
            connection.sock.settimeout(self._within(ANSWER_WITHIN_S))
            try:
                if attempt.context is not None:
                    secured = attempt.context.wrap_socket(connection.sock, server_hostname=coordinator.host)
                    connection.sock, self.certificate = secured, secured.getpeercert(binary_form=True)
                yield connection, attempt.headers
            except _UnknownTokenError as error:
                source = f" (the token is from {attempt.token_source})" if attempt.token_source else ""
                raise RequestError(f"{coordinator}: {error}{source}", ExitCode.REFUSED) from error
            except (OSError, http.client.HTTPException, _WrongAnswerError, _UnknownOutcomeError) as error:
                if attempt.context is None and attempt.speaks_tls(contact.address, self._within(PROBE_WITHIN_S)):
                    raise attempt.tls_required() from error
                explained = attempt.explain(error)
                if explained is None:
                    raise
                raise explained from error

    def _check_certificate(self, contact: ContactPoint) -> None:
        """See that a coordinator accepts the certificate of this client, or wants none. Raises `AccessError`.

        In TLS 1.3 it rejects a certificate after the client's part of the handshake, when a command may be on its way.
        """
        with self._connected(contact, Role.ADMIN) as (connection, _):
            if isinstance(connection.sock, ssl.SSLSocket):
                _get_health(connection)

    def clock_ahead_s(self) -> float:
        """Return by how many seconds at least this host's clock is ahead of a coordinator's; negative if it is behind.

        It is 0 if the clocks may agree: a coordinator tells whole seconds, at some time between request and answer.
        """

        def ask(contact: ContactPoint) -> float:
            with self._connected(contact, Role.READ) as (connection, _):
                sent_at = now().timestamp()
                date = _get_health(connection).getheader("Date") or ""
                try:
                    told_at = parsedate_to_datetime(date).timestamp()
                except ValueError as error:
                    raise _WrongAnswerError(f"does not tell the time as HTTP servers do, but {date[:40]!r}") from error
                least_s, most_s = sent_at - (told_at + 1.0), now().timestamp() - told_at
                return min(max(0.0, least_s), most_s)

        return self._with_failover(ask)

    def node_token(self) -> str:
        """Return the text of the token that nodes have to show; empty for a coordinator in the clear."""

        def ask(contact: ContactPoint) -> str:
            with self._connected(contact, Role.JOIN) as (connection, headers):
                _get_health(connection)  # without TLS, only this shows that no token is wanted
                return headers.get("Authorization", "").removeprefix(BEARER)

        return self._with_failover(ask)

    def _with_failover(self, ask: Callable[[ContactPoint], Result]) -> Result:
        """Try one address after the other, first the one that answered last.

        If the leader is silent, all are retried until its lease has expired and a standby leads.
        """
        ends_at = time.monotonic() + self._within(TAKEOVER_WITHIN_S)
        while True:
            contacts = [contact for named in self._contacts for contact in _expand_addresses(named)]
            silent: list[ContactPoint] = []
            if len(contacts) > 1:
                contacts, silent = self._sort_by_answers(contacts)
            try:
                return self._ask_each(ask, contacts, silent)
            except _SilentLeaderError as error:
                if time.monotonic() >= ends_at:
                    raise LostError(f"{error}: is coordinatord paused there? see --coord") from error
            pause(RETRY_AFTER_S)

    def _sort_by_answers(self, contacts: Sequence[ContactPoint]) -> tuple[list[ContactPoint], list[ContactPoint]]:
        """Return the coordinators to send a request to, a healthy one first, and those that are silent.

        A paused coordinator accepts connections, and then sends nothing. So a request could wait for it. This method
        first asks each for its health: if one does not answer soon, it asks the next one too, and the earlier ones may
        still answer. It returns when one is healthy, when all have answered, or after `ANSWER_WITHIN_S`.
        """
        ends_at, results = time.monotonic() + self._within(ANSWER_WITHIN_S), SimpleQueue[tuple[ContactPoint, bool]]()

        def ask(contact: ContactPoint) -> None:
            results.put((contact, self._is_healthy(contact)))

        silent, unhealthy = list[ContactPoint](), list[ContactPoint]()
        for number, asked in enumerate(contacts, start=1):
            silent.append(asked)
            threading.Thread(target=ask, args=(asked,), daemon=True).start()
            until = ends_at if number == len(contacts) else time.monotonic() + ASK_NEXT_AFTER_S
            with suppress(Empty):
                while silent:
                    contact, healthy = results.get(timeout=max(0.0, min(until, ends_at) - time.monotonic()))
                    silent.remove(contact)
                    if healthy:
                        return [contact, *contacts[number:], *unhealthy], silent
                    unhealthy.append(contact)
        return unhealthy, silent

    def _is_healthy(self, contact: ContactPoint) -> bool:
        """Whether a coordinator answers, and leads or knows the leader."""
        client = Client([contact.coordinator], self._access)  # threads call this, and each sets its own `certificate`
        try:
            with client._connected(contact, Role.READ) as (connection, _):
                return _get_health(connection).status == HTTPStatus.OK
        except (*_ADDRESS_ERRORS, OperationalError):
            return False

    def _ask_each(
        self, ask: Callable[[ContactPoint], Result], contacts: Sequence[ContactPoint], silent: Sequence[ContactPoint]
    ) -> Result:
        """Return the result of the first of these `contacts` that has one. Raises `RequestError` with all reasons.

        `silent` are those that did not answer for their health, and are not asked again.
        """
        errors = [f"{contact}: it does not answer" for contact in silent]
        refusals: list[str] = []
        stands_by = False
        for contact in contacts:
            try:
                answered, result = _ask_leader(ask, contact, silent)
            except _ADDRESS_ERRORS as error:
                separator = " " if isinstance(error, _StandbyError) else ": "
                errors.append(f"{contact}{separator}{_reason_of(error)}")
                stands_by = stands_by or isinstance(error, _StandbyError)
            except AccessError as error:
                refusals.append(str(error))
            else:
                others = [other for other in map(ContactPoint, self._coordinators) if other != answered]
                self._contacts = [answered, *others]
                return result
        if refusals:
            raise RequestError("; ".join([*refusals, *errors]), ExitCode.REFUSED)
        if stands_by:
            raise LostError("; ".join(errors))
        remedy = "See --coord, or start it again with the same state directory: workers go on meanwhile"
        raise LostError(f"{'; '.join(errors)}: is coordinatord running there? {remedy}")


def _ask_leader(
    ask: Callable[[ContactPoint], Result], contact: ContactPoint, silent: Sequence[ContactPoint]
) -> tuple[ContactPoint, Result]:
    """Send a request to one coordinator, or to its leader if it stands by; return which one answered, and the result.

    Raises `_SilentLeaderError` if the leader is one of the `silent`.
    """
    try:
        return contact, ask(contact)
    except _StandbyError as error:
        if error.leader is None:
            raise
        leader = ContactPoint(error.leader)
    if leader.coordinator in [other.coordinator for other in silent]:
        raise _SilentLeaderError(f"{contact}: stands by, and names {leader} as the leader, which does not answer")
    try:
        return leader, ask(leader)
    except _ADDRESS_ERRORS as error:
        raise _WrongAnswerError(f"stands by, and names {leader} as the leader: {_reason_of(error)}") from error


def _expand_addresses(contact: ContactPoint) -> list[ContactPoint]:
    """Return a contact point for each address of a name; the contact point itself if there is at most one."""
    addresses = addresses_of(contact.coordinator) if contact.address is None else ()
    if len(addresses) <= 1:
        return [contact]
    return [ContactPoint(contact.coordinator, address) for address in addresses[:ADDRESSES_MAX]]


def _get(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    """Send a read, and return the answer once its head is there."""
    connection.request(HTTPMethod.GET, path, headers=headers)
    return connection.getresponse()


def _get_health(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    """Ask a coordinator for its health. Raises `_WrongAnswerError` if it rejects that, as a TLS port may."""
    answer = _get(connection, HEALTH_PATH, {})
    if answer.status == HTTPStatus.BAD_REQUEST:
        raise _WrongAnswerError("rejects a request that any coordinatord answers")
    return answer


def _decode(answer: http.client.HTTPResponse) -> Any:
    """Return the data of an answer. Raises the exception that corresponds to a coordinatord's error."""
    body = answer.read(ANSWER_BYTES_MAX)
    if answer.status == STANDBY_STATUS:
        raise _StandbyError(leader_in(answer.getheader("Location") or ""))
    if answer.status == HTTPStatus.OK:
        try:
            return msgpack.decode(body)
        except ERRORS as error:
            raise _WrongAnswerError("does not answer as a coordinatord does") from error
    try:
        refusal = check(msgpack.decode(body), ErrorAnswer, "answer")
    except (SchemaError, *ERRORS) as error:
        is_rejected = HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
        kind = _NotServedError if is_rejected else _WrongAnswerError
        raise kind(f"answers with HTTP {answer.status}, not as a coordinatord does") from error
    if refusal.error == "standby":
        raise _StandbyError(None, refusal.message.removeprefix("this coordinator "))
    if refusal.error in {"unknown_job", "unknown_node"}:
        raise UnknownNameError(refusal.message)
    if answer.status == HTTPStatus.UNAUTHORIZED:
        raise _UnknownTokenError(refusal.message)
    raise RequestError(refusal.message, EXIT_CODES.get(answer.status, ExitCode.UNAVAILABLE))


def _event_data(answer: http.client.HTTPResponse) -> Iterator[Any]:
    """Yield the data of server-sent events until the stream ends; each is one line of JSON."""
    while line := answer.readline(EVENT_BYTES_MAX + 1):
        if len(line) > EVENT_BYTES_MAX:
            raise _WrongAnswerError("sends events without an end")
        field, _, data = line.partition(b":")
        if field == b"data":
            try:
                yield json.decode(data)
            except ERRORS as error:
                raise _WrongAnswerError("does not send events as a coordinatord does") from error


def _reason_of(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "this can be no host name"
    return getattr(error, "strerror", None) or str(error)
