"""The error file is not trusted: all shapes of torch's are understood, and nothing in it can do harm."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nodeclient.diagnosis.diagnose import diagnose
from nodeclient.diagnosis.error_file import FILE_BYTES_MAX, RecordedError, read_error_file
from nodeclient.diagnosis.oom import OomKills
from nodeclient.diagnosis.report_text import CONTEXT_CAPTION

SHAPES: list[tuple[Any, RecordedError | None]] = [
    (
        {"message": {"message": "ValueError: x\ny", "extraInfo": {"py_callstack": "Traceback\n", "timestamp": "1"}}},
        RecordedError("ValueError: x\ny", "Traceback\n"),
    ),
    (
        {"message": {"message": "ValueError: x", "errorCode": 17, "extraInfo": {"timestamp": "1"}}},
        RecordedError("ValueError: x", ""),
    ),
    ({"message": "ValueError: x", "timestamp": 1}, RecordedError("ValueError: x", "")),
    ({"message": {"message": "ValueError: x"}}, RecordedError("ValueError: x", "")),
    ({"message": {"extraInfo": {"py_callstack": "Traceback"}}}, RecordedError("", "Traceback")),
    ({"message": {"message": "x", "extraInfo": {"final": True}}}, RecordedError("x", "", final=True)),
    ({"message": {"message": "x", "extraInfo": {"final": "no"}}}, RecordedError("x", "")),
    ({"message": {"message": ["x"], "extraInfo": "y"}}, None),
    ({"message": None}, None),
    ({"message": ""}, None),
    ({}, None),
    ([], None),
    (7, None),
    (None, None),
]


@pytest.mark.parametrize(("content", "expected"), SHAPES, ids=repr)
def test_a_shape_is_understood_or_says_nothing(content: Any, expected: RecordedError | None, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps(content))
    assert read_error_file(path) == expected


BYTES = {
    "empty": b"",
    "half of it": b'{"message": {"message": "Val',
    "not text": bytes(range(256)),
    "nested too deep": b"[" * 100_000,
    "a number of many digits": b"9" * 100_000,
    "too large": b'{"message": "' + b"x" * FILE_BYTES_MAX + b'"}',
}


@pytest.mark.parametrize("content", BYTES.values(), ids=BYTES)
def test_other_content_says_nothing(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(content)
    assert read_error_file(path) is None


def test_only_a_plain_file_is_opened(tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    plain.write_text('{"message": "x"}')
    link, fifo = tmp_path / "link.json", tmp_path / "fifo.json"
    link.symlink_to(plain)
    os.mkfifo(fifo)
    assert read_error_file(plain) is not None
    assert read_error_file(link) is None
    assert read_error_file(fifo) is None
    assert read_error_file(Path(os.devnull)) is None
    assert read_error_file(tmp_path) is None
    assert read_error_file(tmp_path / "nowhere.json") is None


def test_letters_that_cannot_be_written_do_not_get_far(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(b'{"message": "ValueError: \\ud800 \\u0000 \\u001b[31mred"}')
    found = diagnose(1, 7, path, b"", OomKills())
    assert found.error.startswith("ValueError: ")
    assert found.error.endswith("red")
    assert "\x1b" not in found.error
    assert "\0" not in found.error


def test_the_file_speaks_where_stderr_does_not(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    stack = 'Traceback (most recent call last):\n  File "a.py", line 1, in main\nValueError: in the file'
    path.write_text(
        json.dumps({"message": {"message": "ValueError: in the file", "extraInfo": {"py_callstack": stack}}})
    )
    silent = diagnose(1, 7, path, b"step 1\n", OomKills())
    assert silent.error == "ValueError: in the file"
    assert silent.last_lines == tuple(stack.split("\n"))
    spoken = diagnose(1, 7, path, b"step 1\n" + stack.replace("in the file", "on stderr").encode(), OomKills())
    assert spoken.error == "ValueError: in the file"
    assert spoken.last_lines == (*stack.replace("in the file", "on stderr").split("\n"), CONTEXT_CAPTION, "step 1")


def test_a_call_stack_alone_names_the_error(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    stack = 'Traceback (most recent call last):\n  File "a.py", line 1, in main\nValueError: found\n'
    path.write_text(json.dumps({"message": {"extraInfo": {"py_callstack": stack}}}))
    assert diagnose(1, 7, path, b"", OomKills()).error == "ValueError: found"


def test_success_is_no_failure_whatever_lies_about(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text('{"message": "ValueError: x"}')
    found = diagnose(0, 7, path, b"Traceback (most recent call last):\nValueError: x\n", OomKills())
    assert (found.pid, found.error, found.message, found.last_lines) == (7, "", "", ())
