"""Messages about kept state: each is read as it was written, and what is none is refused in words."""

import json

import pytest

from workerlib.contract.channel_messages import (
    BEFORE_NAMED,
    NOTHING,
    AskRestore,
    HaltAt,
    Hello,
    Interval,
    Message,
    NotSaved,
    Part,
    RefusedMemory,
    Reserve,
    Reserved,
    ResumeFrom,
    Saved,
    SaveNow,
    at_own_step,
    decode,
    encode,
)
from workerlib.contract.packets import WORDS_MAX, ChannelError

MESSAGES: list[Message] = [
    Hello(0, 3, 4711),
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
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not one message"),
        (b'{"a":{},"b":{}}', "not one message"),
        (b'{"launch":{}}', "no message has the name 'launch'"),
        (b'{"hello":{"local_rank":0}}', "other fields than local_rank, round, pid"),
        (b'{"hello":{"local_rank":true,"round":1,"pid":1}}', "Hello.local_rank"),
        (b'{"hello":{"local_rank":-1,"round":1,"pid":1}}', "Hello.local_rank"),
        (b'{"checkpointed":{"step":-1,"asked":0}}', "Checkpointed.step"),
        (b'{"interval":{"steps":-1,"seconds":0,"skipped":0}}', "Interval.steps"),
        (b'{"halt":{"number":1,"step":-2}}', "HaltAt.step"),
        (b'{"saved":{"step":1,"seconds":NaN,"length":1,"asked":0}}', "Saved.seconds"),
        (
            json.dumps(
                {"resume": {"round": 1, "step": 1, "world_size": 1, "parts": [{}] * 65, "more": False}}
            ).encode(),
            "parts",
        ),
    ],
)
def test_what_is_no_message_is_refused(packet: bytes, words: str) -> None:
    with pytest.raises(ChannelError, match=words):
        decode(packet)


def test_a_long_text_is_cut() -> None:
    assert decode(encode(NotSaved("x" * 10_000))) == NotSaved("x" * WORDS_MAX)
