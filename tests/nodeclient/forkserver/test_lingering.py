"""A process that hangs when its program is over is ended by the node, with the exit code that the program had."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import BIN, TIMEOUT_S, clean_environ, run

pytestmark = pytest.mark.slow

IMPATIENT = """
from nodeclient.core import leftover_stages
leftover_stages.LINGER_S = 0.5
from nodeclient.cli import main
main()
"""
"""A nodeclient that gives workers less time to end."""

STUCK = """
import sys
class Stuck:
    def __del__(self):
        while True: pass
stuck = Stuck()
if len(sys.argv) > 1:
    raise ValueError("no data")
"""
"""Hangs in the end of Python, as it lets go of the script's objects."""

STUCK_NATIVELY = """
import ctypes, os, sys
class Kept:
    def __del__(self):
        os.write(2, b"the script's objects are let go of")
kept = Kept()
libc = ctypes.CDLL(None)
libc.on_exit(libc.pause, None)
"""
"""Hangs in what a native library does at the end of its process."""


@pytest.mark.parametrize("words", [pytest.param([], marks=pytest.mark.long), ["fail"]], ids=["success", "failure"])
def test_a_worker_that_is_stuck_in_its_end_has_ended_as_its_program(tmp_path: Path, words: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(STUCK)
    log = impatient_log(script, *words, code=len(words))
    assert ("ValueError: no data" in log) == bool(words)


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.long), 7])
def test_a_worker_that_is_stuck_in_a_native_library_has_ended_with_the_code_of_sys_exit(
    tmp_path: Path, code: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{STUCK_NATIVELY}sys.exit({code})\n")
    assert "the script's objects are let go of" in impatient_log(script, code=code)


def impatient_log(script: Path, *words: str, code: int) -> str:
    """Run a script whose process hangs after its program has ended with this code; return what is logged."""
    job = ("join", "--standalone", "--preload", "json", "--", sys.executable, str(script), *words)
    command = [sys.executable, "-c", IMPATIENT, *job]
    ended = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == code, ended.stderr
    assert f"rank 0: its program has been over for 0.5 s, with exit code {code}, but its process" in ended.stderr
    return ended.stderr


def test_a_worker_that_has_failed_does_not_wait_for_native_libraries(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{STUCK_NATIVELY}raise ValueError('no data')\n")
    flags = ("--standalone", "--preload", "json", "--", sys.executable)
    ended = run(BIN / "nodeclient", "join", *flags, script)
    assert ended.returncode == 1, ended.stderr
    assert "ValueError: no data" in ended.stderr
    assert "the script's objects are let go of" in ended.stderr
    assert "its program has been over" not in ended.stderr
