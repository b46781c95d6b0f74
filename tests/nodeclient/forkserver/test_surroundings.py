"""What a worker gets from the surroundings of its nodeclient, from its user's Python, and for itself alone."""

import os
import resource
import signal
import sys
from pathlib import Path

import pytest

from tests.nodeclient.forkserver.support import DESCRIBE, LIBRARY, Stage, assert_same_start, python

pytestmark = pytest.mark.slow

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
