"""Frames are read whatever the pieces are that they arrive in, and what breaks a rule of RFC 6455 ends the reading."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.runtime.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    CloseCode,
    FrameReader,
    framed,
)

MASK = b"\x5a\xc3\x17\xe8"

MOST = 70_000

PAYLOADS = st.one_of(st.binary(max_size=300), st.sampled_from((125, 126, 127, 65_535, 65_536, MOST)).map(bytes))

MESSAGES = st.lists(st.tuples(st.sampled_from((TEXT, BINARY, CLOSE, PING, PONG)), PAYLOADS), max_size=5).map(
    lambda found: [(kind, payload[:125] if kind >= CLOSE else payload) for kind, payload in found]
)


def not_final(frame: bytes) -> bytes:
    """Return the frame as the first or a middle piece of a message."""
    return bytes((frame[0] & 0x7F,)) + frame[1:]


@given(MESSAGES, st.booleans(), st.lists(st.integers(1, 70_000), min_size=1))
def test_what_is_framed_is_read_in_pieces_of_any_size(
    messages: list[tuple[int, bytes]], masked: bool, sizes: list[int]
) -> None:
    mask = MASK if masked else b""
    sent = b"".join(framed(kind, payload, mask) for kind, payload in messages)
    reader = FrameReader(masked=masked, most=MOST)
    found, at, turn = [], 0, 0
    while at < len(sent):
        size = sizes[turn % len(sizes)]
        found += reader.feed(sent[at : at + size])
        at, turn = at + size, turn + 1
    assert (found, reader.error) == (messages, None)


def test_a_message_in_pieces_is_put_together_around_a_ping() -> None:
    reader = FrameReader(masked=True, most=MOST)
    pieces = [
        not_final(framed(BINARY, b"a" * 200, MASK)),
        not_final(framed(CONTINUATION, b"", MASK)),
        framed(PING, b"?", MASK),
        framed(CONTINUATION, b"b", MASK),
        framed(BINARY, b"next", MASK),
    ]
    assert reader.feed(b"".join(pieces)) == [(PING, b"?"), (BINARY, b"a" * 200 + b"b"), (BINARY, b"next")]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        pytest.param(framed(BINARY, b"x"), CloseCode.PROTOCOL_ERROR, id="not masked"),
        pytest.param(framed(0x40 | BINARY, b"x", MASK), CloseCode.PROTOCOL_ERROR, id="compressed"),
        pytest.param(framed(0x3, b"x", MASK), CloseCode.PROTOCOL_ERROR, id="of an unknown kind"),
        pytest.param(framed(0xB, b"x", MASK), CloseCode.PROTOCOL_ERROR, id="of an unknown kind of control"),
        pytest.param(framed(CONTINUATION, b"x", MASK), CloseCode.PROTOCOL_ERROR, id="a piece of nothing"),
        pytest.param(not_final(framed(PING, b"x", MASK)), CloseCode.PROTOCOL_ERROR, id="a ping in pieces"),
        pytest.param(framed(PING, b"x" * 126, MASK), CloseCode.PROTOCOL_ERROR, id="a long ping"),
        pytest.param(
            not_final(framed(BINARY, b"x", MASK)) + framed(BINARY, b"x", MASK),
            CloseCode.PROTOCOL_ERROR,
            id="a message within a message",
        ),
        pytest.param(framed(BINARY, bytes(MOST + 1), MASK)[:16], CloseCode.TOO_BIG, id="too long, known by its head"),
        pytest.param(b"\x82\xff" + b"\xff" * 8, CloseCode.TOO_BIG, id="the longest that can be said"),
        pytest.param(
            not_final(framed(BINARY, bytes(MOST), MASK)) + framed(CONTINUATION, b"x", MASK)[:6],
            CloseCode.TOO_BIG,
            id="too long in pieces",
        ),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_what_breaks_a_rule_ends_the_reading_after_what_came_before(frame: bytes, code: int, at_once: bool) -> None:
    reader = FrameReader(masked=True, most=MOST)
    sent = framed(BINARY, b"before", MASK) + frame
    size = len(sent) if at_once else 7
    found = []
    for at in range(0, len(sent), size):
        found += reader.feed(sent[at : at + size])
        if reader.error is not None:
            break
    assert found == [(BINARY, b"before")]
    assert reader.error is not None
    assert reader.error.code == code


def test_a_server_does_not_mask() -> None:
    reader = FrameReader(masked=False, most=MOST)
    assert reader.feed(framed(BINARY, b"x", MASK)) == []
    assert reader.error is not None
    assert reader.error.code == CloseCode.PROTOCOL_ERROR
