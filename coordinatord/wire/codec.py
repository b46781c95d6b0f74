"""Messages to bytes and back: msgpack maps with a `type`, one message a frame."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgpack

from coordinatord.wire.messages import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    Desired,
    Held,
    Join,
    Message,
    Observed,
    Refused,
    clip,
)
from coordinatord.wire.schema import SchemaError, check_for, fields_of

First = TypeVar("First", bound=Message)
Second = TypeVar("Second", bound=Message)
Third = TypeVar("Third", bound=Message)

TYPES: dict[str, type[Any]] = {
    "join": Join,
    "observed": Observed,
    "desired": Desired,
    "held": Held,
    "refused": Refused,
}
_NAMES = {message: name for name, message in TYPES.items()}
_CHECKS = {message: check_for(message) for message in TYPES.values()}


class VersionError(SchemaError):
    """The peer speaks another version of the protocol. State: unchanged."""


def encode(message: Message) -> bytes:
    """Pack one message, at most `FRAME_BYTES_MAX` bytes."""
    body = {"type": _NAMES[type(message)], **fields_of(message)}
    packed: bytes = msgpack.packb(body, default=fields_of)  # `default` meets the nested messages
    return packed


@overload
def decode(frame: bytes, expected: type[First], /) -> First: ...
@overload
def decode(frame: bytes, expected: type[First], or_else: type[Second], /) -> First | Second: ...
@overload
def decode(
    frame: bytes, expected: type[First], or_else: type[Second], or_even: type[Third], /
) -> First | Second | Third: ...


def decode(frame: bytes, *expected: type[Any]) -> Any:
    """Unpack and check one message of an `expected` class.

    Raises `SchemaError` for anything else, whatever the bytes are, and `VersionError` for a `Join` in another version,
    which is looked at first, because nothing else can be trusted to be understood then.
    """
    body = _unpack(frame)
    name = body.pop("type", None)
    wanted = TYPES.get(name) if isinstance(name, str) else None
    if wanted not in expected:
        names = " or ".join(_NAMES[message] for message in expected)
        raise SchemaError(f"expected a message of type {names}, not {str(name)[:40]!r}")
    if wanted is Join and body.get("version") != PROTOCOL_VERSION:
        raise VersionError(
            f"this side speaks version {PROTOCOL_VERSION} of the protocol, the other"
            f" {clip(str(body.get('version')), 40)}: install the same release on all hosts"
        )
    return _CHECKS[wanted](body, str(name))


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
