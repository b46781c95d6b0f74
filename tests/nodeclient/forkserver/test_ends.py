"""However a worker ends, its exit code, its last lines and the node's report are the same cold and warm."""

import pytest

from tests.nodeclient.forkserver.support import Stage, assert_same, python

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
