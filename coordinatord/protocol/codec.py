"""Encodes and decodes messages: a frame is one msgpack map with a `type`, and the fields of the session's version.

A session may have an older version of the protocol than this release. `encode` leaves out the fields that this version
lacks, and `decode` gives them their defaults.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from msgspec import Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder

from coordinatord.protocol.messages import FRAME_BYTES_MAX, PROTOCOL_VERSION, Join, Message
from coordinatord.protocol.schema import ERRORS, LeftOut, SchemaError, decoder, plain_without, schema_error
from coordinatord.protocol.versions import SUPPORTED, later_than, version_mismatch

Expected = TypeVar("Expected", bound=Message)

_encoder = Encoder()


class _Claim(Struct, frozen=True):
    """The two fields that a `Join` has in every version, even in unknown ones."""

    type: str = ""
    version: int = 0


_claims = Decoder(_Claim)


class VersionError(SchemaError):
    """The peer's version of the protocol is not supported. Nothing has changed."""


def encode(message: Message, version: int = PROTOCOL_VERSION) -> bytes:
    """Encode one message for a session of this version; the limits of its fields keep it below `FRAME_BYTES_MAX`."""
    # The `Observed` within a `Join` has no `type` on the wire, and `msgspec` would give it one.
    as_it_is = version == PROTOCOL_VERSION and type(message) is not Join
    return _encoder.encode(message if as_it_is else plain(message, later_than(version)))


def plain(message: Message, later: LeftOut) -> dict[str, Any]:
    """Return a message as plain data without the `later` fields."""
    return {"type": type(message).__name__, **plain_without(message, later)}


@overload
def decode(frame: bytes, expected: type[Expected], /) -> Expected: ...
@overload
def decode(frame: bytes, /, *expected: type[Message]) -> Message: ...


def decode(frame: bytes, *expected: type[Any]) -> Any:
    """Decode and validate one message of an `expected` class; fields that its version lacks get their defaults.

    Raises `SchemaError` for any other bytes, and `VersionError` for a `Join` in an unsupported version. The version is
    checked first, because the other fields may have other meanings in another version.
    """
    if len(frame) > FRAME_BYTES_MAX:
        raise SchemaError(f"the frame has {len(frame)} bytes, more than {FRAME_BYTES_MAX}")
    try:
        if Join in expected:
            claim = _claims.decode(frame)
            if claim.type == Join.__name__ and claim.version not in SUPPORTED:
                raise VersionError(version_mismatch(claim.version))
        return decoder(expected).decode(frame)
    except ValidationError as error:
        raise schema_error(error, " or ".join(message.__name__ for message in expected)) from None
    except ERRORS as error:
        raise SchemaError(f"the frame is not msgpack: {error}") from None
