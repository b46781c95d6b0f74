"""Encodes messages between a worker and its nodeclient as packets of one JSON object each, and checks received ones.

A packet of a Unix SOCK_SEQPACKET socket arrives whole or not at all, so it has no length. A message is a dataclass, and
its packet is `{"NameOfTheClass": {"field": value}}`. Anything may have written to the socket, so each field is checked
by its annotation, and the receiver ends the connection after a malformed packet. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, Generic, TypeVar

PACKET_BYTES = 65_536
"""The most bytes of a packet, below what a Unix socket takes by default (wmem_default of Linux, 212,992)."""

TEXT_MAX = 500
"""The most characters of a text, or of a line in a tuple; longer ones are cut."""

NUMBER_MAX = 2**63 - 1
"""The highest number in a message: it fits a signed word of 64 bits."""

LINES_MAX = 64
"""The most lines of a traceback."""

Message = TypeVar("Message")


class ChannelError(ValueError):
    """No valid message can be received; the text says why."""


class ClosedError(ChannelError):
    """The other side has closed the connection."""


class PacketCodec(Generic[Message]):
    """Encodes and decodes the messages of one kind of connection."""

    def __init__(self, kinds: Iterable[type[Any]], nested: type[Any] | None = None, nested_max: int = 0) -> None:
        """Take the dataclasses of the messages, whose names stand in the packets.

        A field may also hold at most `nested_max` objects of the dataclass `nested`.
        """
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._nested, self._nested_max = nested, nested_max

    def encode(self, message: Message) -> bytes:
        """Return a packet. Texts are cut as `decode` cuts them; texts in tuples have to fit, see `last_that_fit`."""
        values = asdict(message)  # type: ignore[call-overload]  # a dataclass
        cut = {name: value[:TEXT_MAX] if isinstance(value, str) else value for name, value in values.items()}
        return json.dumps({type(message).__name__: cut}, separators=(",", ":")).encode()

    def decode(self, packet: bytes) -> Message:
        """Return the message in a packet. Raises `ChannelError`."""
        try:
            content = json.loads(packet)
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"a packet is not JSON: {error}") from None
        if not isinstance(content, dict) or len(content) != 1:
            raise ChannelError("a packet is not one message")
        [(name, values)] = content.items()
        if name not in self._kinds:
            raise ChannelError(f"no message has the name {name[:40]!r}")
        message: Message = self._read(self._kinds[name], values)
        return message

    def _read(self, kind: type[Any], values: object) -> Any:
        wanted = {field.name: field.type for field in fields(kind)}
        if not isinstance(values, dict) or values.keys() != wanted.keys():
            raise ChannelError(f"{kind.__name__} has other fields than {', '.join(wanted) or 'none'}")
        checked = {
            name: self._checked(f"{kind.__name__}.{name}", type_, values[name]) for name, type_ in wanted.items()
        }
        return kind(**checked)

    def _checked(self, where: str, kind: object, value: object) -> object:  # noqa: PLR0911 - one a kind of field
        # The annotations are texts, as `from __future__ import annotations` leaves them. `StepOrNone` has -1 for none.
        match kind:
            case "bool" if isinstance(value, bool):
                return value
            case "int" | "StepOrNone" if type(value) is int and (0 if kind == "int" else -1) <= value <= NUMBER_MAX:
                return value
            case "float" if type(value) in (int, float) and 0 <= value < NUMBER_MAX:  # type: ignore[operator]  # a number
                return float(value)  # type: ignore[arg-type]  # as above
            case "str" if isinstance(value, str):
                return value[:TEXT_MAX]
            case "tuple[str, ...]" if isinstance(value, list) and all(isinstance(text, str) for text in value):
                return tuple(line[:TEXT_MAX] for line in value[:LINES_MAX])
            case "dict[str, str | None]" if isinstance(value, dict) and _are_texts(value.values()):
                return value
            case str() if self._nested is not None and kind == f"tuple[{self._nested.__name__}, ...]":
                if isinstance(value, list) and len(value) <= self._nested_max:
                    return tuple(self._read(self._nested, item) for item in value)
        raise ChannelError(f"{where} is no valid {kind}")


def last_that_fit(lines: Sequence[str]) -> tuple[str, ...]:
    """Return as many of the last lines as fit into half a packet, which leaves room for its other fields."""
    fit: list[str] = []
    left = PACKET_BYTES // 2
    for line in reversed(lines[-LINES_MAX:]):
        left -= len(json.dumps(line[:TEXT_MAX])) + 1
        if left < 0:
            break
        fit.append(line[:TEXT_MAX])
    return tuple(reversed(fit))


def _are_texts(values: Collection[object]) -> bool:
    return all(text is None or isinstance(text, str) for text in values)
