"""The file for schedulers: torch reads it, it is replaced at once, and an error is one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coordinatord.protocol.messages import EarlyEnd, SecondaryFailure
from nodeclient.diagnosis import error_file
from nodeclient.diagnosis.error_file import RecordedError, read_error_file
from tests.support.builders import LOST_PEER, a_failure, a_report
from tests.support.programs import TIMEOUT_S

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
    done = subprocess.run(
        [sys.executable, "-c", TORCH, path],
        env={"TORCHELASTIC_ERROR_FILE": str(parent)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout == "MemoryError 1699999987 5\n", done.stderr
    assert json.loads(parent.read_text())["message"]["errorCode"] == 18


@pytest.mark.slow
def test_a_file_that_only_itself_may_be_written(tmp_path: Path) -> None:
    # A file like /dev/termination-log in Kubernetes: mounted over, so that nothing can be renamed to it.
    path = tmp_path / "log"
    path.write_text("")
    mounted = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)  # noqa: S607 - any unshare
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    script = (
        "import sys, subprocess; from pathlib import Path; from nodeclient.diagnosis import error_file\n"
        "from tests.nodeclient.diagnosis.test_error_file import REPORT\n"
        "path = sys.argv[1]; subprocess.run(['mount', '--bind', path, path], check=True)\n"
        "print(error_file.write(Path(path), REPORT, 0.0), Path(path).read_text()[:10])\n"
    )
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", script, path],  # noqa: S607 - any unshare
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
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
