"""However a worker ends, its exit code, its last lines and the node's report are the same cold and warm.

A warm worker has ended when its program is over, whatever its process does then.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.nodeclient.forkserver.support import Stage, assert_same, python
from tests.support.gloo import BUSY_AT_THE_END, skip_where_gloo_needs_no_python
from tests.support.programs import BIN, run

pytestmark = pytest.mark.slow

LIBRARY_OF_THE_USER = """
def load(name):
    try:
        return {}[name]
    except KeyError as error:
        raise ValueError(f"no data for {name}") from error
"""

ACTS = '''"""Each round ends in another way; the last one well."""
import atexit, faulthandler, os, signal, sys, threading, time
import report
import data

class Kept:
    def __del__(self): print("the script's objects are let go of", flush=True)

kept = Kept()

def by_code(): sys.exit(3)
def by_text(): sys.exit("the disk is full")
def by_exception(): data.load("rank 0")
def by_exception_after_words_of_c():
    import ctypes
    ctypes.CDLL(None).printf(b"printed by C, and never flushed")
    data.load("rank 0")
def by_exception_with_functions_for_the_end():
    import logging.handlers, multiprocessing.util, weakref
    atexit.register(print, "registered first, called last")
    weakref.finalize(kept, print, "finalized")
    multiprocessing.util.Finalize(None, print, ["multiprocessing finalizes"], exitpriority=1)
    memory = logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stdout))
    memory.handle(logging.makeLogRecord({"msg": "logged, and never flushed"}))
    threading.Thread(target=lambda: (threading.main_thread().join(), print("the last thread"))).start()
    data.load("rank 0")
def by_exception_with_an_open_file():
    global notes
    notes = open("notes.txt", "w")
    notes.write("written, and never flushed")
    data.load("rank 0")
def by_exception_beside_a_thread():
    def look():
        while True: time.sleep(0) or notes_of(0)
    threading.Thread(target=look, daemon=True).start()
    data.load("rank 0")
def by_exception_without_stdout():
    os.close(1)
    print("never written", end="")
    data.load("rank 0")
def by_text_after_words():
    print("printed, and never flushed", end="")
    sys.exit(["a", "list"])
def by_exit_in_atexit():
    atexit.register(lambda: print("first registered, last called"))
    atexit.register(sys.exit, 7)
    sys.exit(5)
def at_once():
    print("lost")
    os._exit(9)
def by_kill(): os.kill(os.getpid(), signal.SIGKILL)
def by_fault(): os.kill(os.getpid(), signal.SIGSEGV)
def by_fault_with_words():
    faulthandler.enable()
    os.kill(os.getpid(), signal.SIGSEGV)
def by_abort(): os.abort()
def by_ctrl_c():
    atexit.register(print, "called after Ctrl-C")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1000)
def by_sigterm(): os.kill(os.getpid(), signal.SIGTERM)
def by_handler_of_sigterm():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(21))
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
def by_sigpipe():
    reading, writing = os.pipe()
    os.close(reading)
    os.write(writing, b"x")
def with_a_thread_that_fails():
    thread = threading.Thread(target=data.load, args=["a thread"], name="loader")
    thread.start()
    thread.join()
    sys.exit(22)
def with_threads_that_live():
    ended = threading.Event()
    threading.Thread(target=time.sleep, args=[1000], daemon=True).start()
    threading.Thread(target=lambda: (ended.wait(), print("the last thread"))).start()
    threading._register_atexit(ended.set)
    sys.exit(23)
def by_unraisable():
    class Broken:
        def __del__(self): data.load("a destructor")
    Broken()
    sys.exit(24)
def by_syntax_error():
    import broken
def by_recursion(): by_recursion()
def by_group(): raise ExceptionGroup("two", [ValueError("one"), OSError(2, "other")])
def by_warning():
    import warnings
    warnings.warn("odd data")
    sys.exit(25)
def by_recorded_error():
    import workerlib
    workerlib.record(lambda: data.load("a recorded function"))()
def by_success(): print(open("notes.txt").read())

def notes_of(_): return None

acts = [act for name, act in list(globals().items()) if name.startswith(("by_", "with_", "at_once"))]
act = acts[int(os.environ["TORCHELASTIC_RESTART_COUNT"])]
report.report(act=act.__name__)
act()
raise SystemExit(0 if act is by_success else 99)
'''

ENDS = ACTS.count("\ndef ")
"""How many restarts it takes, and one to spare."""

BINDINGS = '''"""Stands for a library that nanobind has bound to Python, such as triton: it looks for leaks."""
import os

class Type(type): pass
Type.__module__ = "nanobind"

class Function(metaclass=Type):
    def __init__(self): self.cycle = self
    def __del__(self, write=os.write): write(1, b"nothing has leaked\\n")

function = Function()
'''


def test_libraries_that_look_for_leaks_find_none(stage: Stage) -> None:
    stage.write("bindings.py", BINDINGS)
    script = stage.write("train.py", "import bindings, report\nreport.report()\n")
    cold, warm = stage.both(*python(script), preload="bindings")
    assert cold.stdout == "nothing has leaked\n"
    assert_same(cold, warm)


@pytest.mark.long
def test_workers_end_the_same(stage: Stage) -> None:
    stage.write("data.py", LIBRARY_OF_THE_USER)
    stage.write("broken.py", "def f(:\n    pass\n")
    script = stage.write("train.py", ACTS)
    flags = ("--max-restarts", str(ENDS), "--max-futile-rounds", "0", "--log-dir", "LOGS")
    cold, warm = stage.both(*python(script), flags=flags, environ={"PYTHONUNBUFFERED": "0"})
    assert [report.facts["act"] for report in cold.reports][-1] == "by_success", cold.stderr
    assert cold.code == 0
    assert len(stage.loaded_by) == 1
    assert_same(cold, warm)


# It is the cause, though its peers' processes end before its own

PIPES = ("to-1", "from-1", "to-2", "from-2")

RACE = """
import os, sys
rank = os.environ["RANK"]

class Group:
    '''Stands for a process group: Python's end lets go of it, and takes longer than the end of the peers.'''
    def __init__(self):
        self.pipes = [(os.open(f"to-{n}", os.O_WRONLY), os.open(f"from-{n}", os.O_RDONLY)) for n in (1, 2)]
    def __del__(self, close=os.close, read=os.read):
        close(self.pipes[0][0])
        for _, pipe in self.pipes: read(pipe, 1)

def fail(): raise ValueError("no data")

if rank == "0":
    group = Group()
    eval(sys.argv[1])
else:
    incoming, outgoing = os.open(f"to-{rank}", os.O_RDONLY), os.open(f"from-{rank}", os.O_WRONLY)
    os.read(incoming, 1)
    raise RuntimeError("gloo/transport/tcp/pair.cc:1] Connection closed by peer")
"""
"""Rank 1 fails as soon as rank 0 has closed its pipe, and rank 2 ends by the signal of the node after that. The process
of rank 0 lives until both have ended."""


@pytest.mark.parametrize(
    ("end", "code", "cause"),
    [
        pytest.param("sys.exit(7)", 7, "rank 0 (local rank 0) on host", id="exit code"),
        pytest.param("sys.exit('the disk is full')", 1, "rank 0 (local rank 0) on host", id="text"),
        pytest.param("fail()", 1, "rank 0 (local rank 0) on host", id="exception"),
        pytest.param("sys.exit(0)", 1, "rank 0 on node a exited with 0 while rank 1 on node a", id="success"),
        pytest.param("None", 1, "rank 0 on node a exited with 0 while rank 1 on node a", id="last line"),
    ],
)
def test_the_worker_whose_program_ended_first_is_the_cause(stage: Stage, end: str, code: int, cause: str) -> None:
    for pipe in PIPES:
        os.mkfifo(stage.folder / pipe)
    script = stage.write("train.py", RACE)
    job = stage.run(*python(script, end), preload="json", flags=("--nproc-per-node", "3", "--abort-timeout", "60"))
    assert f"root cause   {cause}" in job.stderr, job.stderr
    assert job.code == code


# Whatever gloo's threads are doing, and without workerlib

BUSY = f"""
import os, sys, report
{BUSY_AT_THE_END}
def main():
    report.report()
    dist.init_process_group("gloo")
    model = be_busy_at_the_end()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        dist.destroy_process_group()

main()
if os.environ["TORCHELASTIC_RESTART_COUNT"] != sys.argv[1]:
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("preload", "restarts"),
    [("torch", 1), pytest.param("json", 0, marks=pytest.mark.long)],
    ids=["preloaded", "imported later"],
)
def test_a_worker_ends_although_a_model_outlives_its_group_or_the_group_the_script(
    stage: Stage, preload: str, restarts: int
) -> None:
    skip_where_gloo_needs_no_python()
    script = stage.write("train.py", BUSY)
    flags = ("--nproc-per-node", "2", "--max-restarts", str(restarts))
    job = stage.run(*python(script, str(restarts)), preload=f"beacon,{preload}", flags=flags)
    assert job.code == 0, job.stderr
    assert [(report.round, report.warm) for report in job.reports] == [
        (n, True) for n in range(1, restarts + 2) for _ in range(2)
    ]


# Where its process hangs, the node ends it

IMPATIENT = """
from nodeclient.core import leftover_stages
leftover_stages.LINGER_S = 0.5
from nodeclient.cli import main
main()
"""
"""A nodeclient that gives workers less time to end."""

STUCK = """
class Stuck:
    def __del__(self):
        while True: pass
stuck = Stuck()
"""
"""Hangs in the end of Python, as it lets go of the script's objects."""

LET_GO = "the script's objects are let go of"

STUCK_NATIVELY = f"""
import ctypes, os, sys
class Kept:
    def __del__(self):
        os.write(2, b"{LET_GO}")
kept = Kept()
libc = ctypes.CDLL(None)
libc.on_exit(libc.pause, None)
"""
"""Hangs in what a native library does at the end of its process."""


STUCK_ENDS = {
    "a success": (STUCK, 0, ""),
    "a failure": (f"{STUCK}raise ValueError('no data')\n", 1, "ValueError: no data"),
    "in a native library, 0": (f"{STUCK_NATIVELY}sys.exit(0)\n", 0, LET_GO),
    "in a native library, 7": (f"{STUCK_NATIVELY}sys.exit(7)\n", 7, LET_GO),
}
"""Scripts whose processes hang after the end of the program, the code of that, and what is logged."""


@pytest.mark.parametrize(
    "end", [pytest.param(end, marks=() if code else pytest.mark.long) for end, (_, code, _) in STUCK_ENDS.items()]
)
def test_a_worker_that_is_stuck_in_its_end_has_ended_as_its_program(tmp_path: Path, end: str) -> None:
    text, code, logged = STUCK_ENDS[end]
    script = tmp_path / "train.py"
    script.write_text(text)
    job = ("join", "--standalone", "--preload", "json", "--", sys.executable, str(script))
    ended = run(sys.executable, "-c", IMPATIENT, *job)
    assert ended.returncode == code, ended.stderr
    assert f"rank 0: its program has been over for 0.5 s, with exit code {code}, but its process" in ended.stderr
    assert logged in ended.stderr


def test_a_worker_that_has_failed_does_not_wait_for_native_libraries(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{STUCK_NATIVELY}raise ValueError('no data')\n")
    flags = ("--standalone", "--preload", "json", "--", sys.executable)
    ended = run(BIN / "nodeclient", "join", *flags, script)
    assert ended.returncode == 1, ended.stderr
    assert "ValueError: no data" in ended.stderr
    assert LET_GO in ended.stderr
    assert "its program has been over" not in ended.stderr
