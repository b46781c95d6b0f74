"""What tests start ends with them, however they end."""

import signal
import sys
from pathlib import Path

import pytest

from tests.support.programs import Program, await_end, wait_until

ROOT = Path(__file__).resolve().parents[1]

TESTS = """
import signal
from tests.support.programs import Program
print(Program("sleep", "1000").pid, flush=True)
signal.pause()
"""


@pytest.mark.slow
def test_a_program_does_not_outlive_killed_tests() -> None:
    with Program(sys.executable, "-c", TESTS, cwd=ROOT) as tests:
        started = int(tests.await_line(r"^\d+$")[0])
        # Until then it is the program that binds its life to ours.
        wait_until("the sleep", lambda: Path(f"/proc/{started}/comm").read_text() == "sleep\n")
        tests.signal(signal.SIGKILL)
        await_end(started)
