"""The demo does what it shows: training survives, the numbers are there, and no process is left behind."""

import contextlib
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.programs import Program, clean_environ, kill_quietly

DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo.py"

FOLDER = "coordinatord-demo-*"

TIMEOUT_S = 400.0
"""It takes 40 s on two idle cores, most of it for training, and for the imports of torch by seven nodes."""


def demo(folder: Path, *flags: str) -> Program:
    """Start the demo, whose files then lie in `folder`."""
    return Program(sys.executable, DEMO, *flags, environ=clean_environ(TMPDIR=str(folder), COORDINATORD_INSECURE=""))


@pytest.mark.slow
@pytest.mark.long
def test_training_survives_all_that_the_demo_does_to_it(tmp_path: Path) -> None:
    with demo(tmp_path, "--epochs", "30") as program:
        assert program.wait(TIMEOUT_S) == 0, program.output
        program.await_no_leftovers()

    times = r" +\d+\.\d s +\d+\.\d s +\d+\.\d s"
    for row in (
        rf"worker on node-[abc] killed{times} +3 -> 3 +0",
        rf"node-[abc] \(rank 0\) killed{times} +3 -> 2 +0",
        rf"node-[abc] added back{times} +2 -> 3 +0",
        rf"all stopped, 2 started again{times} +3 -> 2 +0",
    ):
        assert re.search(f"^{row}$", program.output, re.MULTILINE), program.output
    [last] = re.findall(r"^accuracy (0\.\d+), undisturbed (0\.\d+)\nOK$", program.output, re.MULTILINE)
    accuracy, undisturbed = map(float, last)
    assert accuracy > 0.95
    assert accuracy == pytest.approx(undisturbed, abs=0.02)
    assert not list(tmp_path.glob(FOLDER))


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_asked_to_stop_ends_all_its_programs(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    with demo(tmp_path) as program:
        program.await_line("joins the job undisturbed")
        program.signal(signum)
        assert program.wait() == code
        program.await_no_leftovers()
    assert program.lines[-1] == f"demo: stopped by {signum.name}, and all programs with it"
    assert not list(tmp_path.glob(FOLDER))


@pytest.mark.long
@pytest.mark.slow
def test_a_demo_that_goes_wrong_says_why_and_shows_the_ends_of_the_logs(tmp_path: Path) -> None:
    with demo(tmp_path) as program:
        program.await_line("joins the job undisturbed")
        for pid in program.leftovers():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # some of them live for a moment only
                if b"coordinatord\0--host" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    kill_quietly(pid)
        assert program.wait() == 1
        program.await_no_leftovers()
    assert program.lines[-1].startswith("demo: coordinatord does not answer")
    assert "--- coordinatord.log" in program.lines
    assert not any("Traceback" in line for line in program.lines)
