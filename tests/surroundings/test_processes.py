"""Processes that are hidden, reaped by another process, the first of all, or watched by calls that are missing."""

import resource
import signal
import sys
from pathlib import Path

import pytest

from nodeclient.host.syscalls import PIDFD_OPEN, PIDFD_SEND_SIGNAL
from tests.support.cluster import Coordinator
from tests.support.namespaces import NO_RIGHTS, apart, as_user
from tests.support.programs import BIN, Program, clean_environ, kill_quietly
from tests.surroundings.support import NOBODY, join, sh, went

pytestmark = pytest.mark.slow

HELPER = (sys.executable, "-S", "-E", str(Path(__file__).with_name("refuse_calls.py")))

HOLD_IMPORT = """
import os, signal, sys

class Holder:
    def find_spec(self, name, path=None, target=None):
        if name == "coordinatord.runtime.logs":
            sys.stdout.write("importing\\n")
            sys.stdout.flush()
            while True: signal.sigtimedwait([], 0.1)

sys.meta_path.insert(0, Holder())
"""
"""A sitecustomize.py with an import that does not end by itself."""

OLD_PYTHON = """
import fcntl, os, signal
missing = [(os, "pidfd_open"), (os, "memfd_create"), (signal, "pidfd_send_signal")]
missing += [(fcntl, name) for name in dir(fcntl) if "SEAL" in name]
for module, name in missing:
    delattr(module, name)
"""
"""A sitecustomize.py that makes Python one as conda and uv build it, for a C library of 2012."""


@pytest.mark.parametrize("hidden", [1, 2])
def test_processes_of_other_users_may_be_hidden(coordinator: Coordinator, hidden: int) -> None:
    private = apart("--mount", setup=f"mount -t proc -o hidepid={hidden} proc /proc")
    ended = went(
        *private, *as_user(NOBODY), *join(coordinator), "sh", "-c", "id -u; head -c 1 /proc/1/stat || exit 3", code=3
    )
    assert ended.stdout == f"{NOBODY}\n"


def test_whoever_starts_a_node_may_ignore_the_end_of_children() -> None:
    node = (str(BIN / "nodeclient"), "join", "--standalone", "--")
    went(*sh(["trap '' CHLD"], *node), "sh", "-c", "exit 3", code=3)


@pytest.mark.long
@pytest.mark.parametrize("program", ["nodeclient", "coordinatord"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_first_process_of_a_container_can_be_ended_while_it_starts(
    tmp_path: Path, program: str, signum: signal.Signals
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOLD_IMPORT)
    container = apart("--pid", "--fork", "--mount-proc", "--kill-child")
    with Program(*container, BIN / program, environ=clean_environ(PYTHONPATH=str(tmp_path))) as outside:
        outside.await_line("^importing$")
        [inside] = map(int, Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split())
        kill_quietly(inside, signum)
        assert (outside.wait(), outside.lines) == (128 + signum, ["importing"])


def test_a_node_may_be_the_first_process_of_a_container(coordinator: Coordinator) -> None:
    container = apart("--pid", "--fork", "--mount-proc", "--kill-child")
    orphan = 'test $PPID = 1 || exit 2; (sh -c "sleep 0.01" &); exit 3'
    went(*container, *join(coordinator), "sh", "-c", orphan, code=3)


BOXES = {
    "users": lambda: apart("--user", "--map-root-user"),
    "processes": lambda: apart("--pid", "--fork", "--mount-proc", "--kill-child"),
    "no rights": lambda: (*apart("--mount"), *NO_RIGHTS),
    "another user": lambda: as_user(NOBODY),
}


@pytest.mark.parametrize("box", BOXES)
def test_steps_are_reported_by_workers_in_a_container(coordinator: Coordinator, tmp_path: Path, box: str) -> None:
    job = f"box-{tmp_path.name}"
    steps = (*BOXES[box](), sys.executable, "-c", "import workerlib; workerlib.step(3)")
    ended = went(*join(coordinator, "--job-id", job), *steps)
    assert "not reported" not in ended.stderr
    assert coordinator.await_job(job, state="succeeded")["progress"]["step"] == 3


@pytest.mark.parametrize("missing", [PIDFD_OPEN, PIDFD_SEND_SIGNAL])
def test_a_kernel_without_pidfds_is_named_at_the_start(missing: int) -> None:
    command = (str(BIN / "nodeclient"), "join", "--standalone", "--", "echo", "started")
    ended = went(*HELPER, str(missing), *command, code=64)
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    assert "refused (Function not implemented)" in line
    assert "Linux 5.3 or later" in line


def test_without_pidfds_the_state_of_jobs_can_be_asked_for_all_the_same(coordinator: Coordinator) -> None:
    went(*HELPER, str(PIDFD_OPEN), str(BIN / "nodeclient"), "status", "--coord", coordinator.endpoint)


@pytest.mark.parametrize("flags", [(), ("--preload", "json")], ids=["cold", "warm"])
def test_python_may_be_built_for_an_old_c_library(
    coordinator: Coordinator, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(OLD_PYTHON)
    said = 'import os, workerlib; print(hasattr(os, "pidfd_open"), "COORDINATORD_PROGRESS" in os.environ)'
    script, job = tmp_path / "train.py", f"old-{tmp_path.name}"
    script.write_text(f"{said}\nworkerlib.step(3)\nif os.environ['COORDINATORD_ROUND'] == '1': raise SystemExit(1)")
    flags = (*flags, "--job-id", job, "--max-restarts", "1")
    ended = went(*join(coordinator, *flags), sys.executable, str(script), environ={"PYTHONPATH": str(tmp_path)})
    assert ended.stdout == "False True\n" * 2
    assert coordinator.await_job(job, state="succeeded")["progress"]["step"] == 3


def test_a_standalone_node_may_have_a_python_for_an_old_c_library(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(OLD_PYTHON)
    node = (str(BIN / "nodeclient"), "join", "--standalone", "--")
    went(*node, "true", environ={"PYTHONPATH": str(tmp_path)})


def test_a_node_that_can_no_longer_watch_its_workers_ends_and_leaves_none(coordinator: Coordinator) -> None:
    with Program(*join(coordinator), "sh", "-c", "echo worker $$; sleep 1000") as node:
        worker = int(node.await_line(r"^worker (\d+)")[1])
        for pid in (node.pid, coordinator.pid):
            # Otherwise glibc opens it when Python ends the first daemon thread, and aborts the process if it cannot.
            assert "libgcc_s" in Path(f"/proc/{pid}/maps").read_text()
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (3, 3))
        kill_quietly(worker)
        assert node.wait() == 71
        assert "nodeclient: the system refused a request: [Errno 24] Too many open files" in node.output
        node.await_no_leftovers()
        assert "Traceback" not in node.output
