"""What cannot be started warm is started cold, and one line says why; what can be is, by whatever command."""

import importlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nodeclient
from coordinatord.protocol.messages import ColdCause
from nodeclient.forkserver.server_process import HOOK
from tests.nodeclient.forkserver.support import DESCRIBE, LIBRARY, Stage, assert_same_start, python
from tests.support.namespaces import apart

pytestmark = pytest.mark.slow

REPORT = "import report\nreport.report()\nprint('trained')\n"

NAMELESS = """
import _thread, time
running = _thread.allocate_lock()
def pump():
    running.release()
    time.sleep(1e6)
running.acquire()
_thread.start_new_thread(pump, ())
running.acquire()
"""
"""A thread that `threading` does not know."""

NAMED = (
    NAMELESS
    + """
import os
[task] = set(os.listdir("/proc/self/task")) - {{str(os.getpid())}}
with open(f"/proc/self/task/{{task}}/comm", "w") as file:
    file.write("{name}")
"""
)
"""A thread of native code, as far as Python shows: the kernel alone knows its name."""

MODULES = {
    "broken": (
        "raise ValueError('no such\\nGPU')",
        "module broken cannot be imported: ValueError: no such",
        ColdCause.IMPORT,
    ),
    "leaving": (
        "import sys; sys.exit('I leave')",
        "module leaving cannot be imported: SystemExit: I leave",
        ColdCause.IMPORT,
    ),
    "threaded": (
        "import threading, time; threading.Thread(target=time.sleep, args=[1e6], daemon=True, name='pump').start()",
        r"module threaded starts a thread \(pump\), which forks lose",
        ColdCause.PROCESS,
    ),
    "nameless": (NAMELESS, r"module nameless starts a thread \(without a name\)", ColdCause.PROCESS),
    "named": (NAMED.format(name="native pump"), r"module named starts a thread \(native pump\)", ColdCause.PROCESS),
    "stopped": ("raise KeyboardInterrupt", "module stopped cannot be imported: KeyboardInterrupt", ColdCause.IMPORT),
    "starting": (
        "import subprocess; subprocess.Popen(['sleep', '1000'])",
        "module starting starts a process",
        ColdCause.PROCESS,
    ),
    "hiding": (
        "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)",
        "module hiding starts a process",
        ColdCause.PROCESS,
    ),
    "endless": ("raise ValueError('x' * 10_000)", "ValueError: x{200} ", ColdCause.IMPORT),
    "missing": (None, "module missing cannot be imported: ModuleNotFoundError", ColdCause.IMPORT),
}
"""The content of a module, the error about it, and its cause."""

RARER = sorted(MODULES.keys() - {"broken", "threaded"})

ENDINGS = {
    "leaping": ("import os; os._exit(3)", "exit code 3"),
    "crashing": ("import os; os.abort()", "killed by SIGABRT"),
}
"""The same of modules that end the interpreter: it may be another time, so it is tried for each round."""

MACHINE_WITH_A_GPU = """\
mount -t tmpfs none /mnt && cp -a /dev/null /dev/zero /dev/urandom /dev/random /mnt && mkdir /mnt/shm &&
touch /mnt/nvidia-uvm && mount --move /mnt /dev"""
"""A driver that can be opened, and no more, for one command alone."""


def cold_run(stage: Stage, *command: str | Path, preload: str, **how: Any) -> list[str]:
    """Run a job whose workers cannot start warm, and do it cold; return the lines about it."""
    job = stage.run(*command, preload=preload, **how)
    assert job.code == 0, job.stderr
    assert job.reports
    assert not any(report.warm for report in job.reports)
    return [line for line in job.log if "cold" in line]


def assert_cold(
    stage: Stage, *command: str | Path, why: str, cause: ColdCause, preload: str = "beacon", **how: Any
) -> None:
    """Check that a job runs cold, logs why once, and is counted."""
    [line] = cold_run(stage, *command, preload=preload, **how)
    assert re.search(rf"--preload: workers start cold: .*{why}", line)
    assert stage.cold_rounds() == {cause: 1}


def test_a_command_that_cannot_be_started_warm_runs_cold(stage: Stage) -> None:
    stage.write("train.py", REPORT)
    command = ("sh", "-c", f"exec {sys.executable} train.py")
    assert_cold(stage, *command, why="sh is no Python interpreter", cause=ColdCause.COMMAND)


@pytest.mark.parametrize(
    "module", ["broken", "threaded", *(pytest.param(name, marks=pytest.mark.long) for name in RARER)]
)
def test_a_module_that_cannot_be_preloaded_leaves_workers_cold(stage: Stage, module: str) -> None:
    text, why, cause = MODULES[module]
    if text is not None:
        stage.write(f"{module}.py", text)
    assert_cold(stage, *python(stage.write("train.py", REPORT)), why=why, cause=cause, preload=f"json,{module}")


def test_the_thread_of_jemalloc_which_comes_with_pyarrow_and_pandas_leaves_workers_warm(stage: Stage) -> None:
    stage.write("columns.py", NAMED.format(name="jemalloc_bg_thd"))
    job = stage.run(*python(stage.write("train.py", REPORT)), preload="beacon,columns")
    assert [report.warm for report in job.reports] == [True], job.log


def test_a_module_that_removes_the_directory_of_the_program_leaves_workers_warm(stage: Stage) -> None:
    stage.write("strict.py", "import sys; sys.path.remove(__file__.rpartition('/')[0])")
    job = stage.run(*python(stage.write("train.py", REPORT)), preload="beacon,strict")
    assert [report.warm for report in job.reports] == [True], job.log


def test_a_request_whose_descriptor_was_dropped_is_not_the_end_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HOOK)
    parent = importlib.import_module("preload_parent")
    node, link = socket.socketpair()
    with node, link:
        node.send(b".")
        socket.send_fds(node, [b"."], [node.fileno()])
        os.close(parent._receive(link))
        node.shutdown(socket.SHUT_WR)
        assert parent._receive(link) is None


@pytest.mark.parametrize("module", ["leaping", pytest.param("crashing", marks=pytest.mark.long)])
def test_a_module_that_ends_the_interpreter_leaves_workers_cold(stage: Stage, module: str) -> None:
    text, how = ENDINGS[module]
    stage.write(f"{module}.py", text)
    lines = cold_run(stage, *python(stage.write("train.py", REPORT)), preload=f"json,{module}")
    said = f"--preload: the interpreter ended ({how}) in the import of module {module}: workers start cold"
    assert lines
    assert all(line.startswith(said) for line in lines)
    assert stage.cold_rounds() == {ColdCause.PARENT: 1}


@pytest.mark.parametrize("namesake", ["socket.py", pytest.param("socket/__init__.py", marks=pytest.mark.long)])
def test_a_namesake_of_a_module_of_python_s_hides_it_as_always(stage: Stage, namesake: str) -> None:
    stage.write(namesake, "ours = True")
    script = stage.write("train.py", f"import socket\nassert socket.ours\n{REPORT}")
    assert_cold(stage, *python(script), why="socket hides a module of Python's", cause=ColdCause.IMPORT)


@pytest.mark.long
@pytest.mark.parametrize("namesake", ["json", "threading"])
def test_a_namesake_by_way_of_pythonpath_hides_it_as_always(stage: Stage, namesake: str) -> None:
    stage.write(f"mine/{namesake}.py", "ours = True")
    reads = f"import sys\nsys.path.remove({str(stage.folder / 'mine')!r})\ndel sys.modules[{namesake!r}]\n{REPORT}"
    script = stage.write("train.py", f"import {namesake}\nassert {namesake}.ours\n{reads}")
    environ = {"PYTHONPATH": os.pathsep.join([str(stage.folder / "mine"), str(LIBRARY)])}
    assert_cold(
        stage, *python(script), why=f"{namesake} hides a module of Python's", cause=ColdCause.IMPORT, environ=environ
    )


@pytest.mark.long
def test_a_directory_of_such_a_name_hides_nothing(stage: Stage) -> None:
    stage.write("socket/of_lamps.txt", "no module")
    script = stage.write("train.py", f"import socket\nassert socket.create_connection\n{REPORT}")
    assert [report.warm for report in stage.run(*python(script), preload="beacon").reports] == [True]


@pytest.mark.long
def test_with_a_safe_path_a_module_beside_the_program_is_not_found(stage: Stage) -> None:
    stage.write("mine.py", "")
    script = stage.write("train.py", REPORT)
    assert_cold(stage, *python("-P", script), why="No module named 'mine'", cause=ColdCause.IMPORT, preload="mine")


def test_a_module_that_initialises_a_gpu_leaves_workers_cold(stage: Stage) -> None:
    prefix = apart("--mount", setup=MACHINE_WITH_A_GPU)
    stage.write("gpu.py", "driver = open('/dev/nvidia-uvm')")
    script = stage.write("train.py", REPORT)
    why = r"module gpu opened CUDA \(/dev/nvidia-uvm is open\)"
    assert_cold(stage, *python(script), why=why, cause=ColdCause.GPU, preload="json,gpu", prefix=prefix)


@pytest.mark.long
def test_a_module_that_leaves_threads_of_openmp_leaves_workers_cold(stage: Stage) -> None:
    stage.write("parallel.py", "import torch\ntorch.set_num_threads(2)\ntorch.ones(4_000_000).sum()")
    script = stage.write("train.py", f"import torch\ntorch.ones(4_000_000).sum()\n{REPORT}")
    assert_cold(
        stage, *python(script), why="module parallel starts a thread", cause=ColdCause.PROCESS, preload="parallel"
    )


def test_the_program_never_runs_in_the_parent_even_if_nothing_works_there_and_nothing_can_be_said(stage: Stage) -> None:
    stage.write("saboteur.py", "import json, os, sys\njson.dumps = sys.stderr = None\nos.close(2)")
    script = stage.write("train.py", f"import os\nassert 'RANK' in os.environ\n{REPORT}")
    job = stage.run(*python(script), preload="beacon,saboteur")
    assert (job.code, job.stdout) == (0, "trained\n")
    assert [report.warm for report in job.reports] == [False]


def test_a_python_that_does_not_come_to_the_hook_is_found_out_before_it_has_a_program(
    stage: Stage, tmp_path: Path
) -> None:
    # PYTHONPATH cannot name a directory with a colon.
    place = tmp_path / "in:between"
    place.mkdir()
    (place / "nodeclient").symlink_to(Path(nodeclient.__file__).parent)
    main = f"import sys; sys.path.insert(0, {str(place)!r}); from nodeclient.cli import main; main()"
    script = stage.write("train.py", REPORT)
    node = stage.command(*python(script), preload="beacon")[1:]
    run = subprocess.run(
        [sys.executable, "-c", main, *node], cwd=stage.folder, env=stage.environ(), capture_output=True, check=True
    )
    assert run.stdout == b"trained\n"
    assert b"does not import sitecustomize" in run.stderr
    assert [report.warm for report in stage.reports()] == [False]


@pytest.mark.long
def test_a_long_import_is_no_time_without_a_coordinator(stage: Stage) -> None:
    stage.write(
        "slow.py", "import os, time\nwhile os.times().elapsed - float(os.environ['BEGAN']) < 6.5: time.sleep(0.05)"
    )
    script = stage.write("train.py", REPORT)
    began = {"BEGAN": str(os.times().elapsed)}
    job = stage.run(*python(script), preload="beacon,slow", flags=("--join-timeout", "5"), environ=began)
    assert (job.code, [report.warm for report in job.reports]) == (0, [True]), job.stderr


def test_what_a_module_says_when_it_is_imported_is_not_a_worker_s_word(stage: Stage) -> None:
    stage.write("talks.py", "import sys\nprint('to stdout')\nsys.stderr.write('to stderr\\n')\nprint(sys.stdin.read())")
    script = stage.write("train.py", f"import talks\n{REPORT}")
    job = stage.run(*python(script), preload="beacon,talks", words="for a worker", environ={"PYTHONUNBUFFERED": "0"})
    assert job.reports[0].warm
    assert job.stdout == "trained\n"
    assert sorted(job.stderr.split("\n")) == ["", "", "to stderr", "to stdout"]


@pytest.mark.parametrize(
    "subcommand",
    [("run",), *(pytest.param(each, marks=pytest.mark.long) for each in (("launch",), ("run", "-m")))],
    ids=" ".join,
)
def test_all_subcommands_start_warm_workers(stage: Stage, subcommand: tuple[str, ...]) -> None:
    stage.write("train.py", DESCRIBE)
    words = ("train", "x") if "-m" in subcommand else ("train.py", "x")
    cold, warm = stage.both(*words, subcommand=subcommand, flags=("--nproc-per-node", "1"))
    assert_same_start(cold, warm, with_macro=subcommand == ("launch",))
