"""Messages to bytes and back: msgpack maps with a `type`, one message a frame, in a version of the protocol."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar, overload

import msgpack

from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.log_messages import LogChunk, ReadLog
from coordinatord.protocol.messages import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    Degraded,
    Desired,
    Join,
    Message,
    Observed,
    Refused,
)
from coordinatord.protocol.schema import Checks, SchemaError, fields_of, shown
from coordinatord.protocol.stack_messages import AskStacks, Stacks
from coordinatord.protocol.versions import SUPPORTED, Later, differing, later_than

Expected = TypeVar("Expected", bound=Message)

TYPES: dict[str, type[Any]] = {
    message.__name__: message
    for message in (
        Join,
        Observed,
        Desired,
        Degraded,
        Refused,
        ReadLog,
        LogChunk,
        AskStacks,
        Stacks,
        AskArrivals,
        Arrivals,
    )
}


class Dialect:
    """The messages of one version of the protocol, which lacks the `later` fields."""

    def __init__(self, later: Later) -> None:
        self._checks = Checks(later)
        self._take_apart = partial(fields_of, without=later)

    def packed(self, message: Message) -> bytes:
        """Pack one message, at most `FRAME_BYTES_MAX` bytes."""
        body = {"type": type(message).__name__, **self._take_apart(message)}
        packed: bytes = msgpack.packb(body, default=self._take_apart)  # msgpack calls `default` for nested messages
        return packed

    def checked(self, body: dict[Any, Any], message: type[Any]) -> Any:
        """Return a message of this class with these fields. Raises `SchemaError`."""
        return self._checks[message](body, message.__name__)


_DIALECTS = {version: Dialect(later_than(version)) for version in SUPPORTED}


class VersionError(SchemaError):
    """The peer's version of the protocol is not supported. Nothing has changed."""


def encode(message: Message, version: int = PROTOCOL_VERSION) -> bytes:
    """Pack one message for a session of this version, at most `FRAME_BYTES_MAX` bytes."""
    return _DIALECTS[version].packed(message)


@overload
def decode(frame: bytes, expected: type[Expected], /, *, version: int = ...) -> Expected: ...
@overload
def decode(frame: bytes, /, *expected: type[Message], version: int = ...) -> Message: ...


def decode(frame: bytes, *expected: type[Any], version: int = PROTOCOL_VERSION) -> Any:
    """Unpack and check one message of an `expected` class in a session of this version.

    A `Join` itself names its version. Raises `SchemaError` for anything else, whatever the bytes are, and
    `VersionError` for a `Join` in a version that is not supported. The version is checked first, because the other
    fields may have other meanings in another version.
    """
    body = _unpack(frame)
    name = body.pop("type", None)
    wanted = TYPES.get(name) if isinstance(name, str) else None
    if wanted is None or wanted not in expected:
        names = " or ".join(message.__name__ for message in expected)
        raise SchemaError(f"expected a message of type {names}, not {shown(name)}")
    if wanted is Join:
        version = _version_of(body)
    return _DIALECTS[version].checked(body, wanted)


def _version_of(join: dict[Any, Any]) -> int:
    claimed = join.get("version")
    for version in SUPPORTED:
        if claimed == version:
            return version
    raise VersionError(differing(shown(claimed)))


def _unpack(frame: bytes) -> dict[Any, Any]:
    if len(frame) > FRAME_BYTES_MAX:
        raise SchemaError(f"the frame has {len(frame)} bytes, more than {FRAME_BYTES_MAX}")
    try:
        body = msgpack.unpackb(frame, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        # ValueError covers bad UTF-8, lengths beyond the frame and nesting too deep for the unpacker.
        raise SchemaError(f"the frame is not msgpack: {error or type(error).__name__}") from error
    if not isinstance(body, dict):
        raise SchemaError("the frame does not hold a map")
    return body
