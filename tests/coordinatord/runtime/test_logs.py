"""Log lines as they are written."""

import json
import logging
import os
import re
import sys
import warnings
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.runtime import logs
from coordinatord.runtime.logs import JsonFormatter, LineFormatter, colours_wanted, fields


def a_record(message: str, event: str = "", **values: object) -> logging.LogRecord:
    record = logging.LogRecord("name", logging.WARNING, __file__, 1, message, None, None)
    record.__dict__.update(fields(event, **values))
    return record


def a_failing_record(message: str) -> logging.LogRecord:
    record = a_record(message)
    try:
        raise ValueError("first\nsecond")  # noqa: TRY301 - to be caught here
    except ValueError:
        record.exc_info = sys.exc_info()
    return record


def line(message: str, **values: object) -> str:
    return LineFormatter("program").format(a_record(message, "", **values))


def as_json(message: str, event: str = "", **values: object) -> dict[str, Any]:
    text = JsonFormatter("program").format(a_record(message, event, **values))
    assert text.isascii()
    assert text.isprintable()
    found: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return found


def test_a_line_has_time_level_program_message_and_fields() -> None:
    text = line("node joined", job="mnist", round=3)
    assert text.endswith("WARNING program: node joined job=mnist round=3")
    moment = datetime.fromisoformat(text.split()[0])
    assert moment.utcoffset() == moment.astimezone().utcoffset(), "the zone of the host, which is said"


def test_fields_that_say_nothing_are_left_out_but_zero_and_false_are_said() -> None:
    assert line("m", node="", run=None, round=0, charged=False).endswith("m round=0 charged=False")


def test_a_value_that_could_be_misread_is_quoted() -> None:
    assert line("m", reason='a "b" c=d').endswith(r'm reason="a \"b\" c=d"')


@given(message=st.text(st.characters()), value=st.text(st.characters()))
def test_whatever_is_logged_is_one_printable_line(message: str, value: str) -> None:
    text = line(message, value=value)
    assert text.isprintable()
    assert text.encode()


# Logs for machines


def test_an_object_has_time_level_program_event_and_message_first_and_then_the_fields() -> None:
    found = as_json("node joined: host b", "node_joined", job="mnist", round=3, planned=False, node="")
    assert list(found) == ["ts", "level", "program", "event", "message", "job", "round", "planned"]
    assert list(found.values())[1:] == ["warning", "program", "node_joined", "node joined: host b", "mnist", 3, False]
    assert found["ts"].endswith("Z")
    assert as_json("of a library")["event"] == "other"


def test_no_field_takes_the_place_of_what_every_line_has() -> None:
    found = as_json("m", "e", level="x", ts="y", program="p")
    assert (found["level"], found["message"], found["program"]) == ("warning", "m", "program")
    assert found["ts"] != "y"


def test_numbers_are_such_as_every_reader_takes_them_for() -> None:
    found = as_json("m", at=1.5, never=float("inf"), unknown=float("nan"), incarnation=2**60, names=["a", 1])
    assert (found["at"], found["never"], found["unknown"]) == (1.5, "inf", "nan")
    assert found["incarnation"] == "1152921504606846976"
    assert found["names"] == ["a", 1]


def test_an_exception_is_a_field_of_its_line() -> None:
    text = JsonFormatter("program").format(a_failing_record("m"))
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("ValueError: first\nsecond")


@given(
    message=st.text(st.characters()), value=st.text(st.characters()) | st.integers() | st.floats() | st.lists(st.text())
)
def test_whatever_is_logged_is_one_object_that_every_reader_understands(message: str, value: object) -> None:
    found = as_json(message, "event", value=value)
    json.dumps(found, ensure_ascii=False).encode()  # no halves of characters


@pytest.mark.parametrize("form", ["text", "json"])
def test_all_that_a_program_says_at_its_end_is_in_the_form_that_was_asked_for(
    form: str, root: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", "program", form)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("beware", stacklevel=1)
    logs.report_end("program", "no room\nat all")
    assert logs.explain_end("program", ValueError("unheard of")) == 70
    for handler in root.handlers:
        handler.close()  # the library does so at the end of a process
    said = capfd.readouterr().err
    assert logs.is_for_machines() is (form == "json")
    if form == "text":
        assert "program: no room" in said
        assert said.endswith("program: this is a bug of program, please report it with the lines above\n")
        return
    found = [json.loads(text) for text in said.splitlines()]
    assert [entry["event"] for entry in found] == ["other", "failed", "bug"]
    assert "beware" in found[0]["message"]
    assert found[1]["message"] == "no room at all"
    assert "unheard of" in found[2]["exception"]


# Logs for systemd's journal


@pytest.mark.parametrize(
    ("level", "environ", "shown"),
    [
        (logging.INFO, {}, "program: no room job=mnist"),
        (logging.WARNING, {}, "\x1b[33mWARNING\x1b[0m program: no room job=mnist"),
        (logging.ERROR, {}, "\x1b[31mERROR\x1b[0m program: no room job=mnist"),
        (logging.DEBUG, {}, "DEBUG program: no room job=mnist"),
        (logging.ERROR, {"NO_COLOR": "1"}, "ERROR program: no room job=mnist"),
    ],
)
def test_a_line_on_a_terminal_is_short(
    monkeypatch: pytest.MonkeyPatch, level: int, environ: dict[str, str], shown: str
) -> None:
    monkeypatch.setattr(os, "environ", environ)
    record = a_record("no room", "", job="mnist")
    record.levelno, record.levelname = level, logging.getLevelName(level)
    text = LineFormatter("program", on_terminal=True).format(record)
    assert re.fullmatch(r"\d\d:\d\d:\d\d ", text[:9])
    assert text[9:] == shown
    assert JsonFormatter("program", on_terminal=True).format(record).startswith('{"ts": "')


@pytest.mark.parametrize(
    ("environ", "wanted"), [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_who_wants_no_colours_gets_none(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], wanted: bool) -> None:
    monkeypatch.setattr(os, "environ", environ)
    assert colours_wanted() is wanted


def test_the_journal_gets_the_urgency_of_each_line_and_not_the_time() -> None:
    record = a_record("no room", "e", job="mnist")
    assert LineFormatter("program", for_journal=True).format(record) == "<4>WARNING program: no room job=mnist"
    assert JsonFormatter("program", for_journal=True).format(record).startswith('<4>{"ts": "')
    record = a_failing_record("no room")
    record.levelno = logging.ERROR
    lines = LineFormatter("program", for_journal=True).format(record).splitlines()
    assert len(lines) > 2
    assert all(line.startswith("<3>") for line in lines)


@pytest.mark.parametrize("other", [0, 1])
def test_the_journal_is_where_its_variable_says_so(monkeypatch: pytest.MonkeyPatch, other: int) -> None:
    read, write = os.pipe()
    try:
        found = os.fstat(write)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino + other}")
        assert logs.leads_to_journal(write) is (other == 0)
    finally:
        os.close(read)
        os.close(write)
    assert not logs.leads_to_journal(write)


@pytest.mark.parametrize("in_journal", [True, False])
def test_why_a_program_ends_is_an_error_for_the_journal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, in_journal: bool
) -> None:
    found = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino if in_journal else 0}")
    logs.write_last_lines("Traceback\nprogram: no\n")
    assert capfd.readouterr().err == ("<3>Traceback\n<3>program: no\n" if in_journal else "Traceback\nprogram: no\n")
