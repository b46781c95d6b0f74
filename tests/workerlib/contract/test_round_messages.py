"""Messages about rounds in place: each is read as it was written, and what is none is refused in words."""

import json

import pytest

from workerlib.contract.packets import LINES_MAX, PACKET_BYTES, WORDS_MAX, ChannelError, last_that_fit
from workerlib.contract.round_messages import (
    ROUND_CODEC,
    Aborted,
    Aborting,
    AskToLeave,
    CanStay,
    Failed,
    Left,
    NextRound,
    Refusing,
    RoundMessage,
)

MESSAGES: list[RoundMessage] = [
    CanStay(0, 3, 4711),
    AskToLeave(3),
    Failed(3, "RuntimeError: Connection closed by peer", ("Traceback:", "  here")),
    Aborting(3),
    Aborted(3, 0.75),
    Left(3),
    Refusing(3, "it is busy"),
    NextRound(4, {"RANK": "1", "GONE": None}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_written(message: RoundMessage) -> None:
    assert ROUND_CODEC.decode(ROUND_CODEC.encode(message)) == message


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (b"", "not JSON"),
        (b'{"hello":{"local_rank":0,"round":1,"pid":1}}', "no message has the name 'hello'"),
        (b'{"staying":{"local_rank":0}}', "CanStay has other fields than local_rank, round, pid"),
        (b'{"leave":{"round":-1,"planned":false}}', "AskToLeave.round"),
        (b'{"failed":{"round":1,"error":"","lines":"x"}}', "Failed.lines"),
        (b'{"failed":{"round":1,"error":"","lines":[1]}}', "Failed.lines"),
        (b'{"aborted":{"round":1,"took_s":-1}}', "Aborted.took_s"),
        (b'{"left":{"round":"x"}}', "Left.round"),
        (b'{"next":{"round":1,"environ":{"RANK":1}}}', "NextRound.environ"),
        (b'{"next":{"round":1,"environ":[]}}', "NextRound.environ"),
    ],
)
def test_what_is_no_message_is_refused(packet: bytes, words: str) -> None:
    with pytest.raises(ChannelError, match=words):
        ROUND_CODEC.decode(packet)


def test_a_text_and_a_traceback_have_a_limit() -> None:
    packet = json.dumps({"failed": {"round": 1, "error": "e" * 9_999, "lines": ["l" * 9_999] * 999}}).encode()
    failed = ROUND_CODEC.decode(packet)
    assert isinstance(failed, Failed)
    assert (len(failed.error), len(failed.lines), len(failed.lines[0])) == (WORDS_MAX, LINES_MAX, WORDS_MAX)


@pytest.mark.parametrize("letter", ["x", '"', "\N{CJK UNIFIED IDEOGRAPH-4E2D}", "\N{GRINNING FACE}", "\udc80"])
def test_the_end_of_a_traceback_fits_into_a_packet(letter: str) -> None:
    """A packet that does not fit is cut, and that ends the connection of a worker that could have stayed."""
    lines = [letter * 9_999] * 999 + ["RuntimeError: the last line"]
    packet = ROUND_CODEC.encode(Failed(3, letter * WORDS_MAX, last_that_fit(lines)))
    assert len(packet) <= PACKET_BYTES
    failed = ROUND_CODEC.decode(packet)
    assert isinstance(failed, Failed)
    assert failed.lines[-2:] == (letter * WORDS_MAX, "RuntimeError: the last line")


def test_of_a_short_traceback_all_lines_fit() -> None:
    assert last_that_fit(["Traceback:", "  here"]) == ("Traceback:", "  here")
    assert last_that_fit([str(number) for number in range(99)]) == tuple(map(str, range(99 - LINES_MAX, 99)))
