"""`workerlib.record`: what it writes, and that it changes nothing else."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import TIMEOUT_S
from workerlib import record

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from workerlib import record
from workerlib.record import declare_final

class Unfit(ValueError):
    pass

class Broken(Exception):
    def __str__(self):
        raise RuntimeError("no words")

@record
def main(way):
    if way == "raise":
        raise ValueError("no ünicode\\nproblem")
    if way in ("final", "handled", "replaced"):
        error = Unfit("no kind of state")
        declare_final(error)
        if way == "final":
            raise error
        if way == "replaced":
            raise OSError("no disk") from error
    if way == "broken":
        raise Broken
    if way == "exit":
        sys.exit(3)
    if way == "interrupt":
        raise KeyboardInterrupt
    if way == "crash":
        import ctypes
        ctypes.string_at(0)
    return way

if sys.argv[1] == "no stderr":
    sys.stderr = None
assert main(sys.argv[1]) == sys.argv[1]
assert "torch" not in sys.modules
"""


def run(way: str, error_file: Path | None) -> subprocess.CompletedProcess[str]:
    """Run a worker whose main function is recorded."""
    environ = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_ERROR_FILE"}
    if error_file:
        environ["TORCHELASTIC_ERROR_FILE"] = str(error_file)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, way],
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_an_exception_is_written_in_the_shape_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    done = run("raise", path)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: no ünicode\nproblem\n")
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "ValueError: no ünicode\nproblem"
    call_stack = message["extraInfo"]["py_callstack"]
    assert call_stack.startswith('Traceback (most recent call last):\n  File "<string>", line ')
    assert " in main\n" in call_stack  # since Python 3.13 the line of a `-c` program follows
    assert call_stack.endswith("\nValueError: no ünicode\nproblem\n")
    assert int(message["extraInfo"]["timestamp"]) > 1_700_000_000
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("way", "final"), [("final", True), ("replaced", False), ("raise", False)])
def test_only_the_error_that_ends_the_program_can_be_final(way: str, tmp_path: Path, *, final: bool) -> None:
    path = tmp_path / "error.json"
    run(way, path)
    assert json.loads(path.read_text())["message"]["extraInfo"]["final"] is final


@pytest.mark.parametrize(
    ("way", "code"), [("exit", 3), ("handled", 0), ("interrupt", -2), ("crash", -11), ("return", 0), ("no stderr", 0)]
)
def test_what_is_no_exception_is_left_alone(way: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    done = run(way, path)
    assert done.returncode == code, done.stderr
    assert not path.exists()


def test_a_crash_leaves_a_traceback_of_python(tmp_path: Path) -> None:
    done = run("crash", tmp_path / "error.json")
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "in main" in done.stderr


@pytest.mark.parametrize("way", ["raise", "exit", "return"])
def test_without_a_file_it_does_nothing(way: str) -> None:
    with_file, without = {"raise": 1, "exit": 3, "return": 0}[way], run(way, None)
    assert without.returncode == with_file
    assert "workerlib.record" not in without.stderr


def test_an_exception_without_words_is_named(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    run("broken", path)
    assert json.loads(path.read_text())["message"]["message"] == "Broken"


def test_a_file_that_cannot_be_written_does_not_hide_the_exception(tmp_path: Path) -> None:
    done = run("raise", tmp_path / "nowhere" / "error.json")
    assert done.returncode == 1
    assert done.stderr.count("workerlib.record: ") == 1
    assert done.stderr.endswith("ValueError: no ünicode\nproblem\n")


def test_the_signature_stays() -> None:
    @record
    def main(epochs: int, *, name: str = "x") -> str:
        """Train."""
        return name * epochs

    assert main(2, name="ab") == "abab"
    assert (main.__name__, main.__doc__) == ("main", "Train.")
    assert str(inspect.signature(main)) == "(epochs: 'int', *, name: 'str' = 'x') -> 'str'"
