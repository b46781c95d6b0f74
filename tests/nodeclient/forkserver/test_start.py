"""What a worker finds when it begins is the same cold and warm: by its program, its surroundings, and its imports."""

import os
import resource
import signal
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nodeclient.forkserver.support import DESCRIBE, LIBRARY, Stage, assert_same_start, python

pytestmark = pytest.mark.slow


PROGRAM = DESCRIBE.replace("import describe", "import mine, describe")
"""It has a module of its own beside it, which is preloaded."""


def script(stage: Stage) -> tuple[str, ...]:
    return python(stage.write("train.py", PROGRAM), "--lr", "0.1", "")


def relative(stage: Stage) -> tuple[str, ...]:
    stage.write("train.py", PROGRAM)
    return python("-u", "-X", "utf8", "-O", "train.py", "--", "-c")


def through_a_link(stage: Stage) -> tuple[str, ...]:
    stage.write("train.py", PROGRAM)
    stage.write("elsewhere/README", "")
    (stage.folder / "elsewhere" / "link.py").symlink_to("../train.py")
    return python("-X", "dev", "-W", "error", "-W", "ignore::UserWarning", "elsewhere/link.py")


def module(stage: Stage) -> tuple[str, ...]:
    stage.write("package/__init__.py", "above = __name__")
    stage.write("package/sibling.py", "known = 7")
    stage.write("package/training.py", f"from . import above\nfrom .sibling import known\n{PROGRAM}")
    return python("-m", "package.training", "-m", "x")


def package(stage: Stage) -> tuple[str, ...]:
    stage.write("package/__init__.py", "above = __name__")
    stage.write("package/__main__.py", f"from . import above\n{PROGRAM}")
    return python("-B", "-bb", "-mpackage", "--help")


def text(_: Stage) -> tuple[str, ...]:
    return python("-c", PROGRAM, "-c", "x y")


def directory(stage: Stage) -> tuple[str, ...]:
    stage.write("program/__main__.py", PROGRAM)
    return python("program/", "x")


def archive(stage: Stage) -> tuple[str, ...]:
    path = stage.folder / "program.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("__main__.py", PROGRAM)
        file.writestr("mine.py", "place = 'archive'")
    return python("-P", path)


def other_python(stage: Stage) -> tuple[str, ...]:
    """Return a command whose Python has nothing of ours installed."""
    return (str(Path(sys.executable).resolve()), str(stage.write("train.py", PROGRAM)))


WAYS = (script, module, text)
"""Those that most scripts are given in."""

ODD_WAYS = (relative, through_a_link, package, directory, archive, other_python)


@pytest.mark.parametrize(
    "way", [*WAYS, *(pytest.param(way, marks=pytest.mark.long) for way in ODD_WAYS)], ids=lambda way: way.__name__
)
def test_a_program_finds_the_same(stage: Stage, way: Callable[[Stage], tuple[str, ...]]) -> None:
    for place in (".", "elsewhere", "package", "program"):
        stage.write(f"{place}/mine.py", f"place = {place!r}")
    assert_same_start(*stage.both(*way(stage), preload="json,mine"))


@pytest.mark.long
def test_a_program_from_standard_input_finds_the_same(stage: Stage) -> None:
    # Python chooses a locale itself where there is none, and passes it on to programs that it starts.
    environ = {"LANG": "", "LC_ALL": "", "LC_CTYPE": "", "MUCH": "x" * 20_000}
    cold, warm = stage.both(*python("-", "x"), words=DESCRIBE, environ=environ)
    assert cold.facts[0]["environ"]["LC_CTYPE"] == "C.UTF-8"
    assert_same_start(cold, warm)


# Surroundings: the nodeclient's own, those of the user's Python, and those of one worker

CUSTOM = """
import os, sys
os.environ["SET_BY_CUSTOM"] = os.environ.get("SET_BY_CUSTOM", "") + {name!r}
sys.{name} = len(sys.argv), sys.flags.optimize
sys.path.append("/set/by/{name}")
"""
"""A sitecustomize of a cluster's administrator, or of a tool such as a coverage meter."""


def as_under_nohup() -> None:
    os.umask(0o027)
    os.nice(3)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})
    resource.setrlimit(resource.RLIMIT_NOFILE, (777, 778))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Path("/proc/self/oom_score_adj").write_text("123")
    os.dup2(2, 50, inheritable=True)


def test_odd_surroundings_are_the_same(stage: Stage) -> None:
    script = stage.write("train.py", DESCRIBE)
    environ = {
        "PYTHONUNBUFFERED": "0",
        "PYTHONIOENCODING": "latin-1:xmlcharrefreplace",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": f"relative:{LIBRARY}:",
        "LC_ALL": "C",
        "EMPTY": "",
        "NAME WITH BLANKS": "ü\n\udcff",
    }
    cold, warm = stage.both(
        *python("-X", "utf8=0", script, "ü"), environ=environ, before=as_under_nohup, flags=("--log-dir", "LOGS")
    )
    seen = cold.facts[0]["environ"]["NAME WITH BLANKS"]
    assert seen.encode("ascii", "surrogateescape") == environ["NAME WITH BLANKS"].encode("utf-8", "surrogateescape")
    assert_same_start(cold, warm)


@pytest.mark.long
def test_two_workers_are_told_apart(stage: Stage) -> None:
    script = stage.write("train.py", DESCRIBE)
    bound = ("--numa-binding", "exclusive") if len(os.sched_getaffinity(0)) > 1 else ()
    words = ("--cache", "cache/${local_rank}", "${local_rank}")
    cold, warm = stage.both(*python(script, *words), flags=("--nproc-per-node", "2", *bound))
    assert [facts["sys"]["argv"] for facts in warm.facts] == [
        repr([str(script), "--cache", f"cache/{rank}", str(rank)]) for rank in range(2)
    ]
    assert_same_start(cold, warm, with_macro=True)


@pytest.mark.long
def test_modules_of_the_user_s_that_customize_python_are_run(stage: Stage) -> None:
    for name in ("sitecustomize", "usercustomize"):
        stage.write(f"lib/{name}.py", CUSTOM.format(name=name))
    # Only outside of virtual environments Python looks for usercustomize.
    program = Path(sys.executable).resolve()
    script = stage.write("train.py", f"{DESCRIBE}\nimport sitecustomize, usercustomize")
    cold, warm = stage.both(program, script, environ={"PYTHONPATH": f"{stage.folder}/lib:{LIBRARY}"})
    assert "'/set/by/sitecustomize', '/set/by/usercustomize'" in cold.facts[0]["sys"]["path"]
    assert_same_start(cold, warm)


# Imports, whose effects are still there in the workers

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
