"""GPUs whose memory is in use, by a library with NVML's functions, and real processes that have device files open."""

import getpass
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeclient.core.host_health import GpuProcess, GpuUse
from nodeclient.host.devices import Host, visible_gpus
from nodeclient.host.gpu_memory import sample_gpus, uses_of
from nodeclient.host.process_state import stat_fields
from tests.support.machines import compile_c
from tests.support.programs import wait_until
from tests.support.sick_gpus import NVML

pytestmark = pytest.mark.slow

HOLDER = "import sys, time; files = [open(path) for path in sys.argv[1:]]; print('ready', flush=True); time.sleep(1e6)"

LEADERLESS = """
import ctypes, platform, sys, threading, time
files = [open(path) for path in sys.argv[1:]]
threading.Thread(target=time.sleep, args=[1e6]).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""
"""Its main thread ends, and another one lives."""

BLOCKED = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **paths) {
    while (--count) open(paths[count], O_RDONLY);
    puts("ready");
    fflush(stdout);
    if (vfork() == 0) { for (int file = 3; file < 9; ++file) close(file); pause(); _exit(0); }
    return 0;
}
"""
"""It waits in the kernel (state D) for the end of a child, as a process that was killed does for a driver."""

GIB = 1 << 30

ME = getpass.getuser()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Make a host with two GPUs, of which memory is in use, and whose processes are real."""
    monkeypatch.setenv("TEST_IN_USE", "1")
    library = tmp_path / "libnvidia-ml.so.1"
    compile_c(NVML, "-shared", "-fPIC", "-o", library)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return Host(tmp_path, tmp_path, str(library))


Hold = Callable[..., int]


@pytest.fixture
def hold(host: Host) -> Iterator[Hold]:
    """Start processes that have device files open, as children of a shell that lives; return the id of each."""
    shells: list[subprocess.Popen[str]] = []

    def start(*names: str, program: Sequence[str | Path] = (sys.executable, "-c", HOLDER)) -> int:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" & echo $!; wait', "sh", *program, *(host.devices / name for name in names)],
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        shells.append(shell)
        assert shell.stdout
        lines = {shell.stdout.readline().strip(), shell.stdout.readline().strip()}
        [pid] = lines - {"ready"}
        return int(pid)

    yield start
    for shell in shells:
        os.killpg(shell.pid, signal.SIGKILL)
        assert shell.stdout
        shell.stdout.close()
        shell.wait()


def in_use(host: Host, **environ: str) -> tuple[GpuUse, ...]:
    """Return which of the GPUs that workers see have memory in use."""
    return uses_of(visible_gpus(environ, host), host, os.getpid())


def test_processes_that_have_a_gpu_open_are_named_with_their_users(host: Host, hold: Hold) -> None:
    one, both = hold("nvidia-uvm", "nvidia0"), hold("nvidia-uvm", "nvidia0", "nvidia1")
    hold("nvidia1", "nvidiactl")  # as a monitor does by NVML
    assert [(use.name, use.used_bytes, {*use.processes}) for use in in_use(host)] == [
        ("nvidia1", GIB, {GpuProcess(both, ME, left_behind=False)}),
        ("nvidia0", 2 * GIB, {GpuProcess(one, ME, left_behind=False), GpuProcess(both, ME, left_behind=False)}),
    ]


@pytest.mark.parametrize("state", ["Z", "D"])
def test_a_process_that_is_ending_is_left_behind(host: Host, hold: Hold, tmp_path: Path, state: str) -> None:
    program: tuple[str | Path, ...] = (sys.executable, "-c", LEADERLESS)
    if state == "D":
        program = (tmp_path / "blocked",)
        compile_c(BLOCKED, "-o", *program)
    pid = hold("nvidia-uvm", "nvidia0", program=program)
    wait_until(f"its state {state}", lambda: stat_fields(pid, host.processes)[0] == state)
    assert in_use(host, CUDA_VISIBLE_DEVICES="1") == (
        GpuUse("nvidia0", 2 * GIB, (GpuProcess(pid, ME, left_behind=True),)),
    )


FACTS_OF = """
import sys
from pathlib import Path
from nodeclient.host.devices import Host
from nodeclient.host.host_facts import read_facts
folder, library = map(Path, sys.argv[1:])
[use] = read_facts({}, {"CUDA_VISIBLE_DEVICES": "0"}, Host(folder, folder, str(library))).in_use
print(*((process.pid, process.left_behind) for process in use.processes))
"""


@pytest.mark.parametrize("is_adopted", [True, False])
def test_an_orphan_that_the_node_has_adopted_is_left_behind_and_a_program_that_it_has_started_is_not(
    host: Host, *, is_adopted: bool
) -> None:
    command: list[str | Path] = [sys.executable, "-c", HOLDER, host.devices / "nvidia-uvm", host.devices / "nvidia1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=not is_adopted) as child:
        assert child.stdout
        child.stdout.readline()
        found = in_use(host, CUDA_VISIBLE_DEVICES="0")
        as_fact = subprocess.check_output([sys.executable, "-c", FACTS_OF, str(host.devices), host.nvml], text=True)
        child.kill()
    assert found == (GpuUse("nvidia1", GIB, (GpuProcess(child.pid, ME, left_behind=is_adopted),)),)
    assert as_fact.strip() == str((child.pid, is_adopted))


@pytest.mark.parametrize(
    ("environ", "left_behind"),
    [
        (b"HOME=/\0LOCAL_RANK=3\0RANK=11\0", True),
        (b"HOME=/\0MY_LOCAL_RANK=3\0", False),
        (None, False),
    ],
    ids=["a worker", "a service", "not readable"],
)
def test_of_the_children_of_init_those_are_left_behind_that_have_the_environment_of_a_worker(
    host: Host, tmp_path: Path, environ: bytes | None, left_behind: bool
) -> None:
    process = tmp_path / "proc" / "7"
    (process / "fd").mkdir(parents=True)
    for number, name in enumerate(("nvidia-uvm", "nvidia1")):
        (process / "fd" / str(number)).symlink_to(host.devices / name)
    (process / "stat").write_text("7 (python) S 1 5 5 0 -1 4194304")
    if environ is not None:
        (process / "environ").write_bytes(environ)
    found = uses_of(visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, host), replace(host, processes=process.parent), 4711)
    assert found == (GpuUse("nvidia1", GIB, (GpuProcess(7, ME, left_behind=left_behind),)),)


def test_where_the_device_file_is_unknown_any_user_of_cuda_may_have_the_memory(
    host: Host, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_NO_MINOR", "1")
    pid = hold("nvidia-uvm", "nvidia0")
    process = GpuProcess(pid, ME, left_behind=False)
    assert in_use(host) == (
        GpuUse("GPU-1", GIB, (process,)),
        GpuUse("GPU-2", 2 * GIB, (process,)),
    )


def test_a_gpu_whose_memory_is_unknown_is_in_nobody_s_way(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_NO_MEMORY_INFO", "1")
    assert in_use(host) == ()


async def test_without_the_driver_s_device_its_library_is_not_asked(host: Host) -> None:
    (host.devices / "nvidiactl").unlink()
    assert await sample_gpus({}, host) == ()


async def test_a_driver_that_hangs_is_in_nobody_s_way(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await sample_gpus({}, host) == (GpuUse("nvidia1", GIB), GpuUse("nvidia0", 2 * GIB))
    monkeypatch.setenv("TEST_NVML_HANGS", "1")
    assert await sample_gpus({}, host, within_s=0.01) == ()
