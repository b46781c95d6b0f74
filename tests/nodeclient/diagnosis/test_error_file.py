"""Error files: a scheduler's, which torch reads and which is replaced at once, and a worker's, which is not trusted."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinatord.protocol.messages import EarlyEnd, SecondaryFailure
from nodeclient.diagnosis import error_file
from nodeclient.diagnosis.diagnose import diagnose
from nodeclient.diagnosis.error_file import FILE_BYTES_MAX, RecordedError, read_error_file
from nodeclient.diagnosis.oom import OomKills
from nodeclient.diagnosis.report_text import CONTEXT_CAPTION
from tests.support.builders import LOST_PEER, a_failure, a_report
from tests.support.namespaces import apart
from tests.support.programs import run

REPORT = a_report(
    round=3,
    failure=a_failure(
        rank=5, local_rank=1, exit_code=17, error="MemoryError", last_lines=("Traceback:", "MemoryError"), age_s=12.5
    ),
    consequences=(SecondaryFailure("n2", 8, -6),),
    consequences_count=2,
)

TORCH = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, ProcessFailure
failure = ProcessFailure(local_rank=1, pid=4711, exitcode=17, error_file=sys.argv[1])
print(failure.message["message"], failure.timestamp, failure.message["extraInfo"]["rank"])
ErrorHandler().dump_error_file(sys.argv[1], 18)
"""


def test_who_left_early_is_the_error_where_another_failed_for_lack_of_it() -> None:
    report = a_report(failure=a_failure(error=LOST_PEER), early=(EarlyEnd("n2", 3, 0.2),))
    said = error_file.content(report, 0.0)["message"]["message"]
    assert said == "rank 3 on node n2 exited with 0 while rank 0 on node n1 still needed it"


def test_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text("what another job left here")
    assert error_file.write(path, REPORT, 1_700_000_000.0) is None
    written = json.loads(path.read_text())["message"]
    extra = written.pop("extraInfo")
    assert written == {"message": "MemoryError", "errorCode": 17}
    assert extra.pop("hint").startswith("the host host-n1")
    assert extra == {
        "py_callstack": "Traceback:\nMemoryError",
        "timestamp": "1699999987",
        "round": 3,
        "rank": 5,
        "local_rank": 1,
        "node": "n1",
        "hostname": "host-n1",
        "pid": 4_711,
        "how": "exit code 17",
        "found_out": "",
        "consequences": [{"node": "n2", "rank": 8, "exit_code": -6}],
        "consequences_count": 2,
        "shared_by": "",
        "ended_early": "",
        "behind": "",
        "log": "",
    }
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644
    assert read_error_file(path) == RecordedError("MemoryError", "Traceback:\nMemoryError")


def test_a_failure_without_an_exception_has_a_message_too(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    for failure, said in (
        (a_failure(exit_code=-9, message="the kernel's OOM killer"), "killed by SIGKILL: the kernel's OOM killer"),
        (a_failure(exit_code=-11), "killed by SIGSEGV"),
    ):
        assert error_file.write(path, a_report(failure=failure), 0.0) is None
        assert json.loads(path.read_text())["message"]["message"] == said


@pytest.mark.slow
def test_torch_reads_it_and_hands_it_on(tmp_path: Path) -> None:
    path, parent = tmp_path / "error.json", tmp_path / "parent.json"
    error_file.write(path, REPORT, 1_700_000_000.0)
    done = run(sys.executable, "-c", TORCH, path, environ={"TORCHELASTIC_ERROR_FILE": str(parent)})
    assert done.stdout == "MemoryError 1699999987 5\n", done.stderr
    assert json.loads(parent.read_text())["message"]["errorCode"] == 18


@pytest.mark.slow
def test_a_file_that_only_itself_may_be_written(tmp_path: Path) -> None:
    # A file like /dev/termination-log in Kubernetes: mounted over, so that nothing can be renamed to it.
    path = tmp_path / "log"
    path.write_text("")
    script = (
        "import sys; from pathlib import Path; from nodeclient.diagnosis import error_file\n"
        "from tests.nodeclient.diagnosis.test_error_file import REPORT\n"
        "print(error_file.write(Path(sys.argv[1]), REPORT, 0.0), Path(sys.argv[1]).read_text()[:10])\n"
    )
    mounted = apart("--mount", setup=f"mount --bind {path} {path}")
    done = run(*mounted, sys.executable, "-c", script, path)
    assert done.stdout == 'None {"message"\n', done.stderr
    assert json.loads(path.read_text())["message"]["message"] == "MemoryError"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["nowhere/error.json", "", "file/error.json"])
def test_trouble_is_one_line(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = error_file.write(tmp_path / place, REPORT, 0.0)
    assert said is not None
    assert "\n" not in said
    assert str(tmp_path / place) in said
    assert "TORCHELASTIC_ERROR_FILE" in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# Of a worker

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
@pytest.mark.usefixtures("collects_nothing")
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
