"""Nothing that could steer a terminal, break a log line or end an environment gets over the wire."""

import re
import sys
from unicodedata import category

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import Join, RefusalCode, Refused
from coordinatord.protocol.schema import PRINTABLE, SchemaError
from coordinatord.protocol.text import TEXT_MAX, clip

UNPRINTABLE = {
    "null": "\0",
    "newline": "\n",
    "carriage return": "\r",
    "escape": "\x1b",
    "delete": "\x7f",
    "next line (C1)": "\x85",
    "control sequence introducer (C1)": "\x9b",
    "line separator": "\u2028",
    "right-to-left override": "\u202e",
    "surrogate": "\udc80",
}


@pytest.mark.parametrize("character", UNPRINTABLE.values(), ids=UNPRINTABLE)
def test_a_clipped_text_keeps_all_but_what_is_unprintable(character: str) -> None:
    clipped = clip(f"before{character}after")
    assert clipped.isprintable()
    assert clipped.startswith("before")
    assert clipped.endswith("after")


def test_the_pattern_refuses_all_that_steers_a_terminal_and_nothing_that_python_prints() -> None:
    printable = re.compile(PRINTABLE)
    letters = [chr(code) for code in range(sys.maxunicode + 1)]
    assert not [letter for letter in letters if letter.isprintable() and not printable.search(letter)]
    steering = {"Cc", "Cs", "Co", "Zl", "Zp"}
    assert not [letter for letter in letters if category(letter) in steering and printable.search(letter)]
    assert [letter for letter in letters if category(letter) == "Zs" and printable.search(letter)] == [" "]


@given(st.text(st.characters(), max_size=2 * TEXT_MAX))
def test_whatever_text_is_clipped_can_be_sent(text: str) -> None:
    refused = Refused(RefusalCode.MALFORMED, clip(text), retry=False)
    assert decode(encode(refused), Refused) == refused


@given(st.text(st.characters(), max_size=40), st.integers(3, 20))
def test_a_text_is_clipped_to_the_length_wanted(text: str, most: int) -> None:
    assert len(clip(text, most)) <= most


@pytest.mark.parametrize("character", UNPRINTABLE.values(), ids=UNPRINTABLE)
def test_the_names_of_unknown_fields_and_types_are_said_printably(character: str) -> None:
    for body in (
        {"type": f"x{character}"},
        {"type": "Join", "version": f"1{character}"},
        {"type": "Refused", character: 1},
    ):
        frame = msgpack.packb(body, unicode_errors="surrogatepass")
        with pytest.raises(SchemaError) as caught:
            decode(frame, Join, Refused)
        assert str(caught.value).isprintable()
