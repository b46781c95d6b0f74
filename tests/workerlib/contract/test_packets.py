"""Messages between a worker and its node: each is read as it was written, and others are refused in words."""

import json
from typing import Any

import pytest

from workerlib.contract.channel_messages import (
    BEFORE_NAMED,
    CODEC,
    NOTHING,
    AskRestore,
    HaltAt,
    Hello,
    Interval,
    Message,
    NotSaved,
    Pageable,
    Part,
    RefusedMemory,
    Reserve,
    Reserved,
    ResumeFrom,
    Saved,
    SaveNow,
    at_own_step,
)
from workerlib.contract.packets import LINES_MAX, PACKET_BYTES, TEXT_MAX, ChannelError, PacketCodec, last_that_fit
from workerlib.contract.round_messages import (
    ROUND_CODEC,
    Aborted,
    Aborting,
    AskToLeave,
    Failed,
    Left,
    NextRound,
    Refusing,
    Reusable,
    RoundMessage,
)

KEPT_STATE: list[Message] = [
    Hello(0, 3),
    Reserve(2**40, 4096, 1, 8),
    Reserved(),
    RefusedMemory("too large"),
    AskRestore(),
    ResumeFrom(
        2, 17, 3, (Part(0, big=True, small=True, pending=False), Part(2, big=False, small=False, pending=True)), True
    ),
    NOTHING,
    HaltAt(4, BEFORE_NAMED),
    SaveNow(3, planned=True),
    SaveNow(4, planned=True, late=True),
    at_own_step(3),
    Saved(18, 0.25, 1000, asked=3),
    NotSaved("the step was not whole", asked=3),
    Interval(8, 0.01, 2),
    Pageable("cudaHostRegister has refused 1.0 GB: out of memory"),
]

ROUNDS: list[RoundMessage] = [
    Reusable(0, 3),
    AskToLeave(3),
    Failed(3, "RuntimeError: Connection closed by peer", ("Traceback:", "  here")),
    Aborting(3),
    Aborted(3, 0.75),
    Left(3),
    Refusing(3, "it is busy"),
    NextRound(4, {"RANK": "1", "GONE": None}),
]


@pytest.mark.parametrize(
    ("codec", "message"), [(CODEC, message) for message in KEPT_STATE] + [(ROUND_CODEC, message) for message in ROUNDS]
)
def test_a_message_is_read_as_it_was_written(codec: PacketCodec[Any], message: Message | RoundMessage) -> None:
    assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize(
    ("codec", "packet", "words"),
    [
        (CODEC, b"\xff", "not JSON"),
        (CODEC, b"[" * 100_000, "not JSON"),
        (CODEC, b"[]", "not one message"),
        (CODEC, b'{"a":{},"b":{}}', "not one message"),
        (CODEC, b'{"launch":{}}', "no message has the name 'launch'"),
        (CODEC, b'{"Hello":{"local_rank":0}}', "other fields than local_rank, round"),
        (CODEC, b'{"Hello":{"local_rank":true,"round":1}}', "Hello.local_rank"),
        (CODEC, b'{"Hello":{"local_rank":-1,"round":1}}', "Hello.local_rank"),
        (CODEC, b'{"Checkpointed":{"step":-1,"asked":0}}', "Checkpointed.step"),
        (CODEC, b'{"Interval":{"steps":-1,"seconds":0,"skipped":0}}', "Interval.steps"),
        (CODEC, b'{"HaltAt":{"number":1,"step":-2}}', "HaltAt.step"),
        (CODEC, b'{"Saved":{"step":1,"seconds":NaN,"length":1,"asked":0}}', "Saved.seconds"),
        (
            CODEC,
            json.dumps(
                {"ResumeFrom": {"round": 1, "step": 1, "world_size": 1, "parts": [{}] * 65, "more": False}}
            ).encode(),
            "parts",
        ),
        (ROUND_CODEC, b'{"Hello":{"local_rank":0,"round":1}}', "no message has the name 'Hello'"),
        (ROUND_CODEC, b'{"Reusable":{"local_rank":0}}', "Reusable has other fields than local_rank, round"),
        (ROUND_CODEC, b'{"AskToLeave":{"round":-1,"planned":false}}', "AskToLeave.round"),
        (ROUND_CODEC, b'{"Failed":{"round":1,"error":"","lines":"x"}}', "Failed.lines"),
        (ROUND_CODEC, b'{"Failed":{"round":1,"error":"","lines":[1]}}', "Failed.lines"),
        (ROUND_CODEC, b'{"Aborted":{"round":1,"took_s":-1}}', "Aborted.took_s"),
        (ROUND_CODEC, b'{"Left":{"round":"x"}}', "Left.round"),
        (ROUND_CODEC, b'{"NextRound":{"round":1,"environ":{"RANK":1}}}', "NextRound.environ"),
        (ROUND_CODEC, b'{"NextRound":{"round":1,"environ":[]}}', "NextRound.environ"),
    ],
)
@pytest.mark.usefixtures("collects_nothing")
def test_what_is_no_message_is_refused(codec: PacketCodec[Any], packet: bytes, words: str) -> None:
    with pytest.raises(ChannelError, match=words):
        codec.decode(packet)


def test_a_text_and_a_traceback_have_a_limit() -> None:
    packet = json.dumps({"Failed": {"round": 1, "error": "e" * 9_999, "lines": ["l" * 9_999] * 999}}).encode()
    failed = ROUND_CODEC.decode(packet)
    assert isinstance(failed, Failed)
    assert (len(failed.error), len(failed.lines), len(failed.lines[0])) == (TEXT_MAX, LINES_MAX, TEXT_MAX)


def test_a_reason_of_any_length_fits_into_a_packet() -> None:
    """An exception of the script may be the reason, with a whole tensor or configuration in its text."""
    packet = CODEC.encode(NotSaved("w" * 2 * PACKET_BYTES, asked=3))
    assert CODEC.decode(packet) == NotSaved("w" * TEXT_MAX, asked=3)
    assert len(packet) < PACKET_BYTES


@pytest.mark.parametrize("letter", ["x", '"', "\N{CJK UNIFIED IDEOGRAPH-4E2D}", "\N{GRINNING FACE}", "\udc80"])
def test_the_end_of_a_traceback_fits_into_a_packet(letter: str) -> None:
    """A packet that does not fit is cut, and that ends the connection of a worker that could have stayed."""
    lines = [letter * 9_999] * 999 + ["RuntimeError: the last line"]
    packet = ROUND_CODEC.encode(Failed(3, letter * TEXT_MAX, last_that_fit(lines)))
    assert len(packet) <= PACKET_BYTES
    failed = ROUND_CODEC.decode(packet)
    assert isinstance(failed, Failed)
    assert failed.lines[-2:] == (letter * TEXT_MAX, "RuntimeError: the last line")


def test_of_a_short_traceback_all_lines_fit() -> None:
    assert last_that_fit(["Traceback:", "  here"]) == ("Traceback:", "  here")
    assert last_that_fit([str(number) for number in range(99)]) == tuple(map(str, range(99 - LINES_MAX, 99)))
