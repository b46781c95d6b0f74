"""What takes bytes from the network apart: frames, handshakes, messages. Each target takes one input.

A target raises nothing, whatever the input is, unless a property does not hold.
"""

from typing import Any, get_args

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import FRAME_BYTES_MAX, Join, Message
from coordinatord.protocol.schema import SchemaError
from coordinatord.protocol.versions import SUPPORTED
from coordinatord.runtime.websocket.frames import BINARY, CLOSE, CONTROL_BYTES_MAX, PING, PONG, TEXT, FrameReader
from coordinatord.runtime.websocket.handshake import (
    END_OF_HEAD,
    HandshakeError,
    accepted,
    answer_to,
    check_answer,
    headers_of,
)
from tests.fuzz.choices import Choices
from tests.support.raw_websocket import KEY

ERROR_MAX = 500
"""The length of an error in characters: what a stranger sent is not repeated at length."""

HEAD_OF_FRAME_BYTES_MAX = 14
"""Two bytes, a size of eight, a mask of four (RFC 6455, 5.2)."""


def frames(data: bytes) -> None:
    """Read frames, at once and in pieces: the same comes out, and no more is held than one message and one frame."""
    choices = Choices(data)
    masked, most = choices.one_in(2), choices.of((300, 0, 125, 126, FRAME_BYTES_MAX))
    sizes = [1 + choices.byte() for _ in range(1 + choices.byte() % 3)]
    sent = choices.rest()
    whole = FrameReader(masked=masked, most=most)
    expected = whole.feed(sent)
    pieces = FrameReader(masked=masked, most=most)
    read: list[tuple[int, bytes]] = []
    at = turn = 0
    while at < len(sent) and pieces.error is None:
        size = sizes[turn % len(sizes)]
        read += pieces.feed(sent[at : at + size])
        assert len(pieces._begun) <= most + CONTROL_BYTES_MAX + HEAD_OF_FRAME_BYTES_MAX + size
        at, turn = at + size, turn + 1
    assert read == expected
    assert _text(pieces.error) == _text(whole.error)
    for kind, payload in read:
        assert kind in {TEXT, BINARY, CLOSE, PING, PONG}
        assert len(payload) <= (CONTROL_BYTES_MAX if kind >= CLOSE else most)


def _text(error: Exception | None) -> str | None:
    if error is None:
        return None
    check_brief(error)
    return str(error)


def check_brief(error: Exception, *hidden: str) -> None:
    """Check that an error does not repeat at length what a stranger sent, and nothing of what is `hidden`."""
    assert not any(text in str(error) for text in hidden)
    assert len(str(error)) < ERROR_MAX


def handshake(data: bytes) -> None:
    """Read both halves of a handshake: an answer is one answer, and only the right key is believed."""
    choices = Choices(data)
    if choices.one_in(2):
        head = choices.rest()
        try:
            check_answer(head + END_OF_HEAD, KEY)
        except HandshakeError as error:
            check_brief(error)
        else:
            assert accepted(KEY).encode() in head
        return
    headers = headers_of(choices.rest())
    if headers is None:
        return
    assert all(name == name.lower() for name in headers)
    try:
        answer = answer_to(headers)
    except HandshakeError as error:
        check_brief(error)
    else:
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert answer.find(END_OF_HEAD) == len(answer) - len(END_OF_HEAD), "there is one answer and nothing after it"


def message(data: bytes) -> None:
    """Decode a message: what is legal comes back as it was, and what is not has an error that says so briefly."""
    choices = Choices(data)
    version = choices.of(SUPPORTED)
    kinds: tuple[type[Any], ...] = get_args(Message)
    expected = choices.of((kinds, *((kind,) for kind in kinds)))
    frame = choices.rest()
    try:
        found = decode(frame, *expected)
    except SchemaError as error:
        check_brief(error)
        return
    assert type(found) in expected
    spoken = found.version if isinstance(found, Join) else version
    again = encode(found, spoken)
    assert len(again) <= FRAME_BYTES_MAX
    assert decode(again, type(found)) == found
