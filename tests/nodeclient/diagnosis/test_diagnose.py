"""How real workers end, and the diagnosis from their exit code, stderr and error file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coordinatord.protocol.fields import LAST_LINES_MAX
from nodeclient.core.events import Diagnosis
from nodeclient.diagnosis import oom
from nodeclient.diagnosis.diagnose import diagnose, log_text
from nodeclient.diagnosis.report_text import CONTEXT_CAPTION
from tests.support.programs import TIMEOUT_S

pytestmark = pytest.mark.slow

DEEP = """
import sys
def dive(depth):
    if depth:
        dive_deeper(depth)
    else:
        raise RuntimeError("at the bottom")
def dive_deeper(depth):
    dive(depth - 1)
def main():
    dive(40)
main()
"""

LOADER = """
import os, signal, sys
from torch.utils.data import DataLoader, Dataset
class Samples(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        if sys.argv[1] == "raise":
            raise ValueError("bad sample")
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
for _ in DataLoader(Samples(), num_workers=1): pass
"""

TORCH_RECORD = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    try:
        raise ValueError("inner")
    except ValueError as error:
        raise RuntimeError("outer, on\\ntwo lines") from error
sys.stderr = open(os.devnull, "w")
main()
"""

OUR_RECORD = TORCH_RECORD.replace("torch.distributed.elastic.multiprocessing.errors", "workerlib")

SPAWN = """
import torch.multiprocessing as mp
def work(i):
    step(i)
def step(i):
    raise ValueError("bad batch")
if __name__ == "__main__":
    mp.spawn(work)
"""

GLOO = """
import torch.distributed
torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
raise ValueError("with a rank before each line")
"""


def end(tmp_path: Path, program: str, *arguments: str) -> tuple[int, Diagnosis]:
    """Run a worker to its end; return its exit code and its diagnosis."""
    script, error_file = tmp_path / "train.py", tmp_path / "error.json"
    script.write_text(program)
    before = oom.count_kills()
    worker = subprocess.Popen(
        [sys.executable, script, *arguments],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(error_file)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    _, stderr = worker.communicate(timeout=TIMEOUT_S)
    found = diagnose(worker.returncode, worker.pid, error_file, stderr, before)
    assert found.pid == worker.pid
    assert len(found.last_lines) <= LAST_LINES_MAX
    return worker.returncode, found


LOGS = """
import logging, sys, warnings
logging.error("no such split: tset")
logging.warning("bye")
warnings.warn("this is old")
print("\\r 50%|#####     | 5/10 [00:01<00:01,  5.00it/s]", file=sys.stderr)
sys.exit(1)
"""

WARNS = """
import os, sys, warnings
warnings.warn("this is old")
print("[W1121 12:25:20.668433781 socket.cpp:764] [c10d] cannot resolve", file=sys.stderr)
print("step 1", file=sys.stderr, flush=True)
os.kill(os.getpid(), 9)
"""

GIVES_UP = """
import os, sys
print("[W1121 12:25:20.668433781 ProcessGroupGloo.cpp:760] Warning: Unable to resolve hostname", file=sys.stderr)
print("watchdog: no progress, giving up", flush=True)
os._exit(1)
"""

THREAD = """
import sys, threading
def load(): raise OSError("disk")
thread = threading.Thread(target=load)
thread.start()
thread.join()
sys.exit(4)
"""

SHUTDOWN = """
class Model:
    def __del__(self): raise AttributeError("gone")
model = Model()
raise ValueError("the cause")
"""

SAYS = 'import sys\nprint("step 1", file=sys.stderr)\n'

PARSES = "import argparse, sys\nsys.argv[0] = 'train.py'\nargparse.ArgumentParser().parse_args(['--lr'])"

ENDS: dict[str, tuple[str, int, str, str]] = {
    "an exception": (f"{SAYS}1/0", 1, "ZeroDivisionError: division by zero", ""),
    "an exit code": (f"{SAYS}sys.exit(3)", 3, "", "its last output: step 1"),
    "a last word": ("import sys\nsys.exit('no data in /data')", 1, "", "its last output: no data in /data"),
    "a wrong argument": (PARSES, 2, "", "its last output: train.py: error: unrecognized arguments: --lr"),
    "a logged error": (LOGS, 1, "", "its last output: ERROR:root:no such split: tset"),
    "no module": (
        'import os, sys\nos.execv(sys.executable, [sys.executable, "-m", "json.nope"])',
        1,
        "No module named json.nope",
        "",
    ),
    "silence": ("import os\nos._exit(9)", 9, "", ""),
    "an interrupt": ("import os, signal\nos.kill(os.getpid(), 2)\nsignal.pause()", -2, "KeyboardInterrupt", ""),
    "a group": (
        'raise ExceptionGroup("two", [ValueError("a"), OSError("b")])',
        1,
        "ExceptionGroup: two (2 sub-exceptions), first: ValueError: a",
        "",
    ),
    "an abort": ("import os\nos.abort()", -6, "", ""),
    "a fault handler": (
        "import faulthandler, os\nfaulthandler.enable()\nos.abort()",
        -6,
        "Fatal Python error: Aborted",
        "",
    ),
    "wrong syntax": ("def main(:\n    pass\n", 1, "SyntaxError: invalid syntax", ""),
    "a reason on stdout": (GIVES_UP, 1, "", ""),
    "a thread": (THREAD, 4, "OSError: disk", ""),
    "a shutdown": (SHUTDOWN, 1, "ValueError: the cause", ""),
}


@pytest.mark.parametrize(("program", "code", "error", "message"), ENDS.values(), ids=ENDS)
def test_a_worker_ends(tmp_path: Path, program: str, code: int, error: str, message: str) -> None:
    ended, found = end(tmp_path, program)
    assert (ended, found.error, found.message) == (code, error, message)
    assert not error or any(line.endswith(error.partition(", first")[0]) for line in found.last_lines)


@pytest.mark.parametrize("program", [OUR_RECORD, pytest.param(TORCH_RECORD, marks=pytest.mark.long)], ids=["our", "t"])
def test_record_where_stderr_is_lost(tmp_path: Path, program: str) -> None:
    _, found = end(tmp_path, program)
    assert found.error == "RuntimeError: outer, on two lines"
    assert found.last_lines[0] == "Traceback (most recent call last):"
    assert "ValueError: inner" in found.last_lines
    assert found.last_lines[-1] == "two lines"


def test_a_traceback_that_was_written_twice_is_shown_once(tmp_path: Path) -> None:
    program = """
import sys, traceback
def load(path):
    raise OSError(path)
def main(path):
    load(path)
try:
    main("other")
except OSError:
    traceback.print_exc()
print("next", file=sys.stderr)
try:
    main("data")
except OSError as error:
    traceback.print_exc()
    print("giving up", file=sys.stderr)
    for line in traceback.format_exc().splitlines():
        print(f"[rank1]: {line}".rstrip(), file=sys.stderr)
    sys.exit(1)
"""
    _, found = end(tmp_path, program)
    assert found.error == "OSError: data"
    assert found.last_lines[0] == "Traceback (most recent call last):"
    shown, before = (" ".join(found.last_lines)).split(CONTEXT_CAPTION)
    assert (shown.count("OSError: data"), before.count("OSError: data")) == (1, 0)
    assert before.count("OSError: other") == 1  # that was another one
    assert "giving up" in before
    assert not any("rank1" in line for line in found.last_lines)


def test_killed(tmp_path: Path) -> None:
    code, found = end(tmp_path, WARNS)
    assert (code, found.error, found.last_lines) == (-9, "", ("step 1",)), "what libraries had warned of says nothing"
    known = oom.count_kills().cgroup is not None
    assert found.message == ("some process sent it, not the kernel's OOM killer" if known else "")


def test_of_a_deep_stack_both_ends_are_shown(tmp_path: Path) -> None:
    _, found = end(tmp_path, DEEP)
    assert found.error == "RuntimeError: at the bottom"
    assert found.last_lines[0] == "Traceback (most recent call last):"
    assert "    main()" in found.last_lines
    assert any("lines ..." in line for line in found.last_lines)
    assert found.last_lines[-1] == found.error
    assert len(found.last_lines) == LAST_LINES_MAX


@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("raise", "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: bad sample"),
        pytest.param(
            "SIGKILL", r"RuntimeError: DataLoader worker \(pid\(s\) \d+\) exited unexpectedly", marks=pytest.mark.long
        ),
    ],
)
def test_a_worker_of_a_data_loader(way: str, error: str, tmp_path: Path) -> None:
    _, found = end(tmp_path, LOADER, way)
    assert re.fullmatch(error, found.error)
    assert any("bad sample" in line or "killed by signal: Killed" in line for line in found.last_lines)


@pytest.mark.long
def test_of_a_process_of_torch_s_spawn_both_tracebacks_are_shown(tmp_path: Path) -> None:
    code, found = end(tmp_path, SPAWN)
    assert (code, found.error) == (1, "ValueError: bad batch")
    shown = list(found.last_lines)
    begin = shown.index("Traceback (most recent call last):")
    assert "    mp.spawn(work)" in shown[begin:]
    assert "    step(i)" in shown[begin:]
    assert shown[-1] == found.error


def test_a_traceback_as_torch_writes_it_in_a_process_group(tmp_path: Path) -> None:
    code, found = end(tmp_path, GLOO)
    assert (code, found.error) == (1, "ValueError: with a rank before each line")
    assert found.last_lines[0] == "Traceback (most recent call last):"
    assert not any("[rank0]: " in line for line in found.last_lines)


def test_a_path_that_no_message_can_hold_is_left_out() -> None:
    paths = (Path("/logs/1"), Path("/logs/" + "a" * 1_024), Path("/lo\ngs"), None)
    assert [log_text(path) for path in paths] == ["/logs/1", "", "", ""]
