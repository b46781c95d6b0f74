"""Log lines as they are written."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.shared.logs import LineFormatter, fields


def line(message: str, **values: object) -> str:
    record = logging.LogRecord("name", logging.WARNING, __file__, 1, message, None, None)
    record.__dict__.update(fields(**values))
    return LineFormatter("program").format(record)


def test_a_line_has_time_level_program_message_and_fields() -> None:
    text = line("node joined", job="mnist", round=3)
    assert text.endswith("WARNING program: node joined job=mnist round=3")
    assert text[10] == "T"
    assert text[23] == "Z"


def test_fields_that_say_nothing_are_left_out_but_zero_and_false_are_said() -> None:
    assert line("m", node="", run=None, round=0, charged=False).endswith("m round=0 charged=False")


def test_a_value_that_could_be_misread_is_quoted() -> None:
    assert line("m", reason='a "b" c=d').endswith(r'm reason="a \"b\" c=d"')


def test_whatever_a_message_contains_it_stays_one_line() -> None:
    assert "\n" not in line("first\nsecond\r\nthird", node="x\ny")


@pytest.mark.parametrize("character", "\0\n\r\t\x1b\x7f\x85\x9b\u2028\u202e\udc80", ids=ascii)
def test_a_line_never_steers_the_terminal_that_shows_it(character: str) -> None:
    text = line(f"a{character}b", node=f"c{character}d", quoted=f"e{character} f")
    assert text.isprintable()
    for letter in "abcdef":
        assert letter in text


@given(message=st.text(st.characters()), value=st.text(st.characters()))
def test_whatever_is_logged_is_one_printable_line(message: str, value: str) -> None:
    text = line(message, value=value)
    assert text.isprintable()
    assert text.encode()
