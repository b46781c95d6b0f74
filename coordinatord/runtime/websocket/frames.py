"""Encodes and decodes WebSocket frames (RFC 6455, section 5), without a socket.

Nearly all frames are heartbeats: whole binary messages of some hundred bytes. So their path through the code is short.
"""

from __future__ import annotations

import math
from enum import IntEnum

from coordinatord.protocol.errors import OperationalError

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
"""Kinds of frames. Those from `CLOSE` on are control frames, which may come between the fragments of a message."""

KINDS = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})

FINAL, RESERVED, KIND = 0x80, 0x70, 0x0F
"""The parts of the first byte. Without extensions, no reserved bit may be set."""

MASKED, SIZE = 0x80, 0x7F
"""The parts of the second byte: whether the payload is masked, and its size."""

WHOLE_MESSAGE = FINAL | BINARY
"""The first byte of a binary message in one frame."""

CONTROL_BYTES_MAX = 125
"""The limit of a control frame's payload; a control frame is never fragmented."""

IN_TWO_BYTES, IN_EIGHT_BYTES = 126, 127
"""Values of the size field for a size in the next two or eight bytes."""

MASK_BYTES = 4


class CloseCode(IntEnum):
    """Why an endpoint closes a WebSocket (RFC 6455, 7.4.1)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    POLICY_VIOLATION = 1008
    TOO_BIG = 1009


class FrameError(OperationalError):
    """The peer violates the protocol, or its message is too long. State: the reader decodes nothing more."""

    def __init__(self, code: CloseCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def framed(kind: int, payload: bytes, mask: bytes = b"") -> bytes:
    """Return one whole frame; a client passes a `mask` of four bytes, a server none."""
    size, flag = len(payload), MASKED if mask else 0
    if size < IN_TWO_BYTES:
        head = bytes((FINAL | kind, flag | size))
    elif size < 1 << 16:
        head = bytes((FINAL | kind, flag | IN_TWO_BYTES)) + size.to_bytes(2)
    else:
        head = bytes((FINAL | kind, flag | IN_EIGHT_BYTES)) + size.to_bytes(8)
    return head + mask + xored(payload, mask) if mask else head + payload


def xored(payload: bytes, mask: bytes) -> bytes:
    """Mask a payload, or unmask it, which is the same operation."""
    size = len(payload)
    key = (mask * (size // MASK_BYTES + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(size)


class FrameReader:
    """Decodes the bytes that arrive at one endpoint, in pieces of any size."""

    def __init__(self, *, masked: bool, most: int) -> None:
        """Decode a client's frames if `masked`, else a server's. A message may have at most `most` bytes."""
        self._masked = masked
        self._most = most
        self._begun = bytearray()
        """The received part of an incomplete frame."""
        self._wanted = 0
        """How many bytes that frame must have before it is decoded again."""
        self._pieces: bytearray | None = None
        """The payload so far of a fragmented message; None without one."""
        self._kind = BINARY
        """The kind of that message."""
        self.allowed: float = math.inf
        """How many more frames are accepted. An owner that limits them raises this number over time."""
        self.error: FrameError | None = None
        """The first error, after which nothing more is decoded; None without one."""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Decode bytes; return the messages and control frames that they complete, each with its kind.

        If a frame is wrong, set `error`, and return the messages before it.
        """
        begun = self._begun
        if begun:
            begun += data
            if len(begun) < self._wanted:
                return []
            data = bytes(begun)
            begun.clear()
        messages: list[tuple[int, bytes]] = []
        try:
            at = self._decode(data, messages)
        except FrameError as error:
            self.error = error
        else:
            if at < len(data):
                begun += data[at:] if at else data
        return messages

    def _decode(self, data: bytes, messages: list[tuple[int, bytes]]) -> int:
        """Append complete messages; return the offset of the first incomplete frame. Raises `FrameError`."""
        at, end = 0, len(data)
        masked, most = self._masked, self._most
        while at < end:
            start = at + 2  # the offset after the first two bytes
            if end < start:
                self._wanted = 2
                break
            first, second = data[at], data[at + 1]
            size = second & SIZE
            if size >= IN_TWO_BYTES:
                width = 2 if size == IN_TWO_BYTES else 8
                start += width
                if end < start:
                    self._wanted = 2 + width
                    break
                size = int.from_bytes(data[start - width : start])
            is_usual = first == WHOLE_MESSAGE and self._pieces is None and size <= most and self.allowed >= 1
            if not is_usual or (second >= MASKED) is not masked:
                self._check(first, second, size)  # a usual frame with the right mask has no error
            if masked:
                start += MASK_BYTES
            stop = start + size
            if stop > end:
                self._wanted = stop - at
                break
            self.allowed -= 1
            payload = data[start:stop]
            if masked:
                payload = xored(payload, data[start - MASK_BYTES : start])
            if first == WHOLE_MESSAGE and self._pieces is None:
                messages.append((BINARY, payload))
            else:
                self._join(first, payload, messages)
            at = stop
        return at

    def _check(self, first: int, second: int, size: int) -> None:
        """Check the head of a frame. Raises `FrameError`."""
        kind = first & KIND
        if self.allowed < 1:
            raise FrameError(CloseCode.POLICY_VIOLATION, "frames come faster than anybody needs to send them")
        if first & RESERVED or kind not in KINDS:
            raise FrameError(CloseCode.PROTOCOL_ERROR, f"a frame begins with {first:#04x}: no extension was agreed on")
        if (second >= MASKED) is not self._masked:
            raise FrameError(CloseCode.PROTOCOL_ERROR, "a client masks its frames, and a server does not")
        if kind >= CLOSE:
            if not first & FINAL or size > CONTROL_BYTES_MAX:
                raise FrameError(CloseCode.PROTOCOL_ERROR, "a control frame is in pieces or too long")
            return
        if (kind == CONTINUATION) is (self._pieces is None):
            raise FrameError(CloseCode.PROTOCOL_ERROR, "the pieces of a message are not in order")
        whole = size + len(self._pieces or b"")
        if whole > self._most:
            raise FrameError(CloseCode.TOO_BIG, f"a message has {whole} bytes or more, and {self._most} are the most")

    def _join(self, first: int, payload: bytes, messages: list[tuple[int, bytes]]) -> None:
        """Append a control frame or a fragmented message, or add a fragment to its message."""
        kind = first & KIND
        if kind >= CLOSE:
            messages.append((kind, payload))
            return
        if kind != CONTINUATION:
            self._kind, self._pieces = kind, bytearray()
        assert self._pieces is not None  # noqa: S101 - the head was checked
        self._pieces += payload
        if first & FINAL:
            messages.append((self._kind, bytes(self._pieces)))
            self._pieces = None
