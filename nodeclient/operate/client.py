"""Asks coordinators over HTTP: reads, commands, and events as they come. Plain `http.client`, and no event loop.

Several addresses are tried in turn. Every failure is an `RequestError`, one line that says which address said or did
what. `protocol.api` says what the answers mean.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from http import HTTPMethod, HTTPStatus
from typing import Any, TypeVar

import msgpack

from coordinatord.protocol.api import AdminBody, DrainBody, ErrorAnswer
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.schema import SchemaError, fields_of, reader_for
from nodeclient.config import Endpoint
from nodeclient.operate.request_errors import AnswerError, LostError, RequestError, UnknownNameError

ANSWER_WITHIN_S = 10.0
"""A person waits no longer; a coordinator answers in milliseconds."""

SILENT_S_MAX = 45.0
"""Of a stream: a coordinator sends a comment every 15 s, so it misses two before the connection is taken for dead."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Some 300 bytes a node: 20,000 nodes, the coordinator's own limit, ten times over."""

EVENT_BYTES_MAX = 256 * 1024
"""Of one line of a stream: a reason of 4,096 characters, each escaped as JSON does it, ten times over."""

Answer = TypeVar("Answer")
Found = TypeVar("Found")

CODES: dict[int, ExitCode] = {HTTPStatus.CONFLICT: ExitCode.REFUSED, HTTPStatus.SERVICE_UNAVAILABLE: ExitCode.TEMPFAIL}
"""By the status of a refusal: not as things are, and not now."""

MSGPACK = "application/msgpack"
STREAM = "text/event-stream"


def read(kind: type[Answer], data: Any, where: str = "answer") -> Answer:
    """Return what was decoded as a record of `protocol.api`. Raises `AnswerError`, which names the field."""
    try:
        return reader_for(kind)(data, where)
    except SchemaError as error:
        raise AnswerError(str(error)) from error


class _StrangeError(OperationalError):
    """What answers is no coordinatord, or not in order."""


_TROUBLES = (OSError, UnicodeError, http.client.HTTPException, _StrangeError)
"""What can go wrong with one address, and not with the next."""


class Client:
    """Coordinators, or rather the addresses of one, and what can be asked of it."""

    def __init__(self, coordinators: Sequence[Endpoint]) -> None:
        self._coordinators = list(coordinators)

    @property
    def where(self) -> str:
        """The address that answered last."""
        return str(self._coordinators[0])

    def get(self, path: str) -> Any:
        """Return what is answered to a read, decoded."""

        def ask(coordinator: Endpoint) -> Any:
            with closing(_connect(coordinator)) as connection:
                connection.request(HTTPMethod.GET, path, headers={"Accept": MSGPACK})
                return _decoded(connection.getresponse())

        return self._in_turn(ask)

    def post(self, path: str, body: AdminBody | DrainBody) -> Any:
        """Have a command done, at most once; return what is answered, decoded."""

        def ask(coordinator: Endpoint) -> Any:
            with closing(_connect(coordinator)) as connection:
                try:
                    headers = {"Accept": MSGPACK, "Content-Type": MSGPACK}
                    connection.request(HTTPMethod.POST, path, msgpack.packb(fields_of(body)), headers)
                    return _decoded(connection.getresponse())
                except (OSError, http.client.HTTPException) as error:
                    words = "so it is not known whether it was done: see nodeclient events"
                    raise RequestError(f"{coordinator}: {_why(error)}, {words}") from error

        return self._in_turn(ask)

    def events(self, path: str, after: str | None) -> Iterator[Any]:
        """Yield the events after the one of this id, or all, decoded, as they come; ends with `LostError`."""
        headers = {"Accept": f"{STREAM}, {MSGPACK}"}  # the second is for errors
        if after is not None:
            headers["Last-Event-ID"] = after

        def ask(coordinator: Endpoint) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
            connection = _connect(coordinator, SILENT_S_MAX)
            with ExitStack() as stack:
                stack.callback(connection.close)
                connection.request(HTTPMethod.GET, path, headers=headers)
                answer = connection.getresponse()
                _check_stream(answer)
                stack.pop_all()
            return connection, answer

        connection, answer = self._in_turn(ask)
        with closing(connection):
            try:
                yield from _data_of(answer)
            except _TROUBLES as error:
                raise LostError(f"{self.where}: {_why(error)}") from error
        raise LostError(f"{self.where}: it has closed the connection")

    def _in_turn(self, ask: Callable[[Endpoint], Found]) -> Found:
        """Ask one address after the other; the next time, whoever has answered comes first."""
        errors = []
        for coordinator in list(self._coordinators):
            try:
                found = ask(coordinator)
            except _TROUBLES as error:
                errors.append(f"{coordinator}: {_why(error)}")
            else:
                self._coordinators.sort(key=lambda one: one != coordinator)
                return found
        raise LostError(f"{'; '.join(errors)}: is coordinatord running there? see --coord")


def _connect(coordinator: Endpoint, silent_s_max: float = ANSWER_WITHIN_S) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(coordinator.host, coordinator.port, timeout=ANSWER_WITHIN_S)
    connection.connect()
    connection.sock.settimeout(silent_s_max)
    return connection


def _decoded(answer: http.client.HTTPResponse) -> Any:
    """Return what an answer holds; raise what a coordinatord means by an error."""
    body = answer.read(ANSWER_BYTES_MAX)
    try:
        decoded = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        if answer.status == HTTPStatus.OK:
            raise _StrangeError("gives no answer as a coordinatord does") from error
        decoded = None
    if answer.status == HTTPStatus.OK:
        return decoded
    try:
        data = read(ErrorAnswer, decoded)
    except AnswerError as error:
        raise _StrangeError(f"answers with HTTP {answer.status}, not as a coordinatord does") from error
    if data.error == "unknown_job":
        raise UnknownNameError(data.message)
    raise RequestError(data.message, CODES.get(answer.status, ExitCode.UNAVAILABLE))


def _check_stream(answer: http.client.HTTPResponse) -> None:
    if answer.status != HTTPStatus.OK:
        _decoded(answer)
    if not (answer.getheader("Content-Type") or "").startswith(STREAM):
        raise _StrangeError("gives no stream of events, as a coordinatord does")


def _data_of(answer: http.client.HTTPResponse) -> Iterator[Any]:
    """Yield the data of server-sent events until the stream ends; each is one line of JSON."""
    while line := answer.readline(EVENT_BYTES_MAX + 1):
        if len(line) > EVENT_BYTES_MAX:
            raise _StrangeError("sends events without an end")
        field, _, data = line.partition(b":")
        if field == b"data":
            try:
                yield json.loads(data)
            except (ValueError, RecursionError) as error:
                raise _StrangeError("sends no events as a coordinatord does") from error


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "this can be no host name"
    return getattr(error, "strerror", None) or str(error)
