"""What `import workerlib` does in a script: it defines names, and nothing else before the script's first call."""

import json
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import TIMEOUT_S, clean_environ
from workerlib import __all__ as public
from workerlib.contract.env import KEEP, ROUNDS, STACKS

LINES_MAX = 1_500
"""The most lines of Python that the import loads of this package: it is a small helper."""

PROGRAM = """
import atexit, builtins, faulthandler, gc, json, os, signal, sys
import logging, socket, threading  # they have hooks of their own
forks = []
os.register_at_fork = lambda **calls: forks.append(calls)

def state():
    return {
        "threads": sorted(os.listdir("/proc/self/task")),
        "signals": repr({each: signal.getsignal(each) for each in signal.valid_signals()}),
        "faulthandler": faulthandler.is_enabled(),
        "hooks": repr([sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook]),
        "traced": repr([sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()]),
        "audited": repr([sys.meta_path, sys.path_hooks, sys.path]),
        "patched": repr([socket.socket.__init__, builtins.__import__, builtins.open]),
        "ends": atexit._ncallbacks(),
        "forks": len(forks),
        "logs": repr([logging.root.handlers, logging.root.level]),
        "garbage": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "environ": dict(os.environ),
        "sockets": sum(os.path.realpath(f"/proc/self/fd/{each}").count("socket:") for each in range(1024)),
    }

before = state()
import workerlib
after = state()
own = [sys.modules[name].__file__ for name in sorted(sys.modules) if name.partition(".")[0] == "workerlib"]
said = {"before": before, "after": after, "own": own, "all": sorted(sys.modules), "names": dir(workerlib)}
workerlib.sampler
print(json.dumps(said))
"""


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a process says that has imported workerlib where nodeclient offers all of its sockets."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
        path = str(tmp_path_factory.mktemp("node") / "socket")
        listener.bind(path)
        listener.listen()
        offered = {STACKS: path, KEEP: path, ROUNDS: path, "COORDINATORD_WORKER": "0"}
        program = (sys.executable, "-c", PROGRAM)
        environ = {**clean_environ(), **offered, "PYTHONPATH": str(Path.cwd())}
        done = subprocess.run(program, env=environ, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_the_import_leaves_the_process_as_it_was(imported: dict[str, Any]) -> None:
    assert imported["after"] == imported["before"]


def test_the_import_loads_little(imported: dict[str, Any]) -> None:
    lines = {path: Path(path).read_text().count("\n") for path in imported["own"]}
    assert sum(lines.values()) <= LINES_MAX, lines
    assert not {"torch", "numpy"} & set(imported["all"])
    late = [path for path in lines if "/keeping/" in path or "/reuse/" in path or "/integrations/" in path]
    assert late == []


def test_names_that_are_loaded_at_their_first_use_are_listed_before(imported: dict[str, Any]) -> None:
    assert imported["names"] == sorted(public)
