"""The effects of a module's import are still there in the workers, and forgotten variables are not."""

import pytest

from tests.nodeclient.forkserver.support import DESCRIBE, Stage, assert_same_start, python

pytestmark = pytest.mark.slow

# ctypes before all else: some releases of libffi keep a file open from its import on, and the hook has imported it.
EFFECTS = '''"""Does at its import what modules should not do, and do."""
import ctypes
import atexit, decimal, faulthandler, gc, locale, logging, os, resource, signal, socket, sys, tempfile, threading
import multiprocessing, warnings

os.environ["SET_BY_MODULE"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("LOCAL_RANK", "7")
os.environ.pop("TO_BE_FORGOTTEN")
os.environ["TO_BE_CHANGED"] += ":changed"
os.umask(0o027)
sys.stdout.reconfigure(line_buffering=True, errors="replace")
sys.path.append("/set/by/module")
sys.setrecursionlimit(2345)
sys.excepthook = lambda *error: print("excepthook", error)
gc.set_threshold(900, 9, 9)
threading.stack_size(1 << 20)
faulthandler.enable()
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
socket.setdefaulttimeout(12)
warnings.simplefilter("error", BytesWarning)
logging.basicConfig(level=logging.ERROR)
decimal.getcontext().prec = 7
tempfile.tempdir = os.getcwd()
resource.setrlimit(resource.RLIMIT_NOFILE, (600, 700))
multiprocessing.set_start_method("spawn")
atexit.register(lambda: print("the last word of the module"))
file = open(__file__)
'''


def test_what_a_module_does_when_it_is_imported_stays_done(stage: Stage) -> None:
    stage.write("effects.py", EFFECTS)
    script = stage.write("train.py", f"import effects, json\n{DESCRIBE}")
    cold, warm = stage.both(
        *python(script), preload="effects,json", environ={"TO_BE_FORGOTTEN": "1", "TO_BE_CHANGED": "here"}
    )
    for facts in (*cold.facts, *warm.facts):
        del facts["shown"]  # what a process does to its own environment, others see of a warm worker alone
    assert cold.stdout == "the last word of the module\n"
    assert_same_start(cold, warm)


CHECKS = ("PYTORCH_NVML_BASED_CUDA_CHECK", "TRITON_NVML_BASED_CUDA_CHECK")


def test_modules_look_for_gpus_without_cuda_unless_the_user_wants_it_otherwise(stage: Stage) -> None:
    stage.write("looking.py", f"import os\nfound = [os.environ.get(name) for name in {CHECKS}]")
    own = f"own=[os.environ.get(name) for name in {CHECKS}]"
    script = stage.write("train.py", f"import os, looking, report\nreport.report(imported=looking.found, {own})")
    job = stage.run(*python(script), preload="looking", environ={"TRITON_NVML_BASED_CUDA_CHECK": "0"})
    assert job.facts == [{"imported": ["1", "0"], "own": [None, "0"]}], job.log
