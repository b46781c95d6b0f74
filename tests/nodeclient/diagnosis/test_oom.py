"""Whether a worker ended for lack of memory, by the kernel's counters: on trees made up here, and once for real."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeclient.diagnosis import oom
from nodeclient.diagnosis.diagnose import diagnose
from nodeclient.diagnosis.oom import (
    FIRST_PID_NAMESPACE,
    OomKill,
    OomKills,
    count_kills,
    explain_oversized,
    kill_since,
    memory_of_killed,
)
from nodeclient.host.devices import THIS_HOST, Host
from tests.support.programs import run

KILLED = "killed by the kernel's OOM killer"

LOG = """\
4,1200,90,-;python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
6,1201,91,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/job,task_memcg=/job,task=python,pid=4711,uid=0
3,1202,92,-;Memory cgroup out of memory: Killed process 4711 (python) total-vm:9000kB, anon-rss:65536kB, \
file-rss:5120kB, shmem-rss:1048576kB, UID:0 pgtables:200kB oom_score_adj:0
3,1203,93,-;Memory cgroup out of memory: Killed process 4712 (python) total-vm:9000kB, anon-rss:3kB
"""


class MadeUp:
    """A host as its files in /proc and /sys show it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = Host(root, root / "sys", processes=root / "proc")
        self.write("proc/meminfo", f"MemTotal:       {64 * 2**20} kB\nMemFree: 1 kB\nSwapTotal: {64 * 2**20} kB\n")
        (root / "proc/self/ns").mkdir(parents=True)
        (root / "proc/self/ns/pid").symlink_to(FIRST_PID_NAMESPACE)

    def write(self, path: str, text: str) -> None:
        """Write a file of it."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def kills(self, group: str, kills: int, hits: int | None = None, limit: str = "max") -> None:
        """Write the kernel's counts of a cgroup of v2."""
        self.write(f"{group}/memory.events", f"low 0\nmax 9\noom 9\noom_kill {kills}\n")
        self.write(f"{group}/memory.max", f"{limit}\n")
        if hits is not None:
            self.write(f"{group}/memory.events.local", f"low 0\noom {hits}\noom_kill 0\n")


@pytest.fixture
def host(tmp_path: Path) -> MadeUp:
    return MadeUp(tmp_path)


@pytest.fixture
def unified(host: MadeUp) -> MadeUp:
    host.write("proc/self/cgroup", "0::/slurm/job 7\n")
    host.kills("sys/fs/cgroup/slurm", 3, 0, str(2**40))
    host.kills("sys/fs/cgroup/slurm/job 7", 0, 0, str(64 * 2**30))
    return host


@pytest.mark.parametrize(
    ("above", "own", "kill"),
    [
        ((4, 1), (1, 0), OomKill("memory limit of its cgroup: 1 TiB", certain=True)),
        ((4, 1), (0, 0), None),
        ((3, 0), (1, 0), OomKill("out of memory on the host, which has 64 GiB", certain=True)),
    ],
    ids=["the limit of a cgroup above", "a neighbour", "a full host"],
)
def test_whose_limit_it_was_is_known(
    unified: MadeUp, above: tuple[int, int], own: tuple[int, int], kill: OomKill | None
) -> None:
    before = count_kills(unified.host)
    unified.kills("sys/fs/cgroup/slurm", *above, str(2**40))
    unified.kills("sys/fs/cgroup/slurm/job 7", *own, str(64 * 2**30))
    assert kill_since(before, unified.host) == kill


def test_a_kernel_that_counts_no_limits(unified: MadeUp) -> None:
    for file in unified.root.rglob("memory.events.local"):
        file.unlink()
    before = count_kills(unified.host)
    unified.kills("sys/fs/cgroup/slurm/job 7", 1, None, str(64 * 2**30))
    assert kill_since(before, unified.host) == OomKill("memory limit of its cgroup: 64 GiB", certain=True)


def test_the_old_memory_controller_in_a_container(host: MadeUp) -> None:
    host.write("proc/self/cgroup", "8:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n")
    group = "sys/fs/cgroup/memory"
    host.write(f"{group}/memory.limit_in_bytes", f"{512 * 2**20}\n")
    host.write(f"{group}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    before = count_kills(host.host)
    assert before.cgroup == 2
    host.write(f"{group}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert kill_since(before, host.host) == OomKill("memory limit of its cgroup: 512 MiB", certain=True)
    host.write(f"{group}/memory.limit_in_bytes", "9223372036854771712\n")
    assert kill_since(before, host.host) == OomKill("out of memory on the host, which has 64 GiB", certain=True)


def test_only_the_host_counts(host: MadeUp) -> None:
    host.write("proc/vmstat", "nr_free_pages 1\noom_kill 7\n")
    before = count_kills(host.host)
    assert before == OomKills(None, 7)
    assert kill_since(before, host.host) is None
    host.write("proc/vmstat", "nr_free_pages 1\noom_kill 8\n")
    kill = kill_since(before, host.host)
    assert kill is not None
    assert not kill.certain


def test_a_host_that_shows_nothing(tmp_path: Path) -> None:
    host = Host(system=tmp_path, processes=tmp_path)
    before = count_kills(host)
    assert before == OomKills()
    assert kill_since(before, host) is None
    assert diagnose(-9, 7, None, b"", before, host).message == ""


def test_the_report_says_who_killed(unified: MadeUp) -> None:
    before = count_kills(unified.host)
    unified.write("kmsg", LOG)
    for exit_code in (-9, 137):
        found = diagnose(exit_code, 4_711, None, b"", before, unified.host)
        assert found.message == "some process sent it, not the kernel's OOM killer"
    assert diagnose(-15, 4_711, None, b"", before, unified.host).message == ""
    unified.kills("sys/fs/cgroup/slurm/job 7", 1, 1, str(64 * 2**30))
    for exit_code in (-9, 137):
        found = diagnose(exit_code, 4_711, None, b"", before, unified.host)
        assert found.message == f"{KILLED} (memory limit of its cgroup: 64 GiB); it held 1.06 GiB"
    found = diagnose(1, 4_711, None, b"", before, unified.host)
    assert found.message == (
        "the kernel's OOM killer ended a process of its cgroup meanwhile (memory limit of its cgroup: 64 GiB)"
    )


def test_the_kernels_log_is_believed_only_where_its_numbers_are_ours(unified: MadeUp) -> None:
    assert memory_of_killed(4_711, unified.host) is None
    unified.write("kmsg", LOG)
    assert memory_of_killed(4_711, unified.host) == (65_536 + 1_048_576) * 1024
    assert memory_of_killed(4_712, unified.host) == 3 * 1024
    assert memory_of_killed(4_713, unified.host) is None
    namespace = unified.root / "proc/self/ns/pid"
    namespace.unlink()
    namespace.symlink_to("pid:[4026532000]")
    assert memory_of_killed(4_711, unified.host) is None


# Allocations that are larger than all memory

TORCH = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate {} bytes. Error code 12 (Cannot allocate memory)"
)
NUMPY = (
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate {} for an array with shape (4503599627370496,) and "
    "data type uint8"
)
GPU = "torch.OutOfMemoryError: {} out of memory. Tried to allocate {}. GPU 0 has a total capacity of 23.69 GiB of which"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TORCH.format(2**52), "it asked for 4 PiB at once, and the host has 128 GiB in all"),
        (TORCH.format(2**37 + 2**30), "it asked for 129 GiB at once, and the host has 128 GiB in all"),
        (TORCH.format(2**37), ""),
        (NUMPY.format("7.11 PiB"), "it asked for 7.11 PiB at once, and the host has 128 GiB in all"),
        (NUMPY.format("4.00 GiB"), ""),
        (NUMPY.format("1.2.3 GiB"), ""),
        (NUMPY.format("9" * 400 + " GiB"), ""),
        (GPU.format("CUDA", "4096.00 GiB"), "it asked for 4 TiB at once, and the GPU has 23.7 GiB in all"),
        (GPU.format("HIP", "23.70 GiB"), "it asked for 23.7 GiB at once, and the GPU has 23.7 GiB in all"),
        (GPU.format("CUDA", "158.00 MiB"), ""),
        ("MemoryError", ""),
        ("", ""),
    ],
)
def test_what_is_said_of_an_allocation_that_failed(host: MadeUp, error: str, said: str) -> None:
    assert explain_oversized(error, host.host) == said


def test_without_knowing_the_memory_of_the_host_nothing_is_said(tmp_path: Path) -> None:
    assert explain_oversized(TORCH.format(2**52), Host(processes=tmp_path)) == ""


def test_a_diagnosis_says_that_an_allocation_was_too_large(host: MadeUp) -> None:
    written = f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{TORCH.format(2**52)}\n'
    found = diagnose(1, 7, None, written.encode(), OomKills(), host.host)
    assert found.message == "it asked for 4 PiB at once, and the host has 128 GiB in all"


# A real kill

LIMIT = 64 * 2**20

PARENT = """
import json, os, subprocess, sys
from pathlib import Path
from nodeclient.diagnosis.diagnose import diagnose
from nodeclient.diagnosis.oom import count_kills
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
before = count_kills()
worker = subprocess.Popen([sys.executable, "-S", "-E", "-c", "held = bytearray(200 * 2**20)"])
code = worker.wait()
print(json.dumps([code, worker.pid, before.cgroup, diagnose(code, worker.pid, None, b"", before).message]))
"""


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """Yield a cgroup of 64 MiB beside this process's own, where this process may make one."""
    groups = list(oom._memory_cgroups(THIS_HOST))
    if not groups:
        pytest.skip("no memory controller is to be seen here")
    group = groups[-1] / f"nodeclient-test-{id(groups)}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        limit = next((file for file in ("memory.max", "memory.limit_in_bytes") if (group / file).exists()), None)
        if limit is None:
            pytest.skip("a cgroup made here cannot be limited")
        (group / limit).write_text(str(LIMIT))
        for swap in ("memory.swap.max", "memory.swappiness"):
            if (group / swap).exists():
                (group / swap).write_text("0")
        yield group
    finally:
        group.rmdir()


@pytest.mark.slow
def test_the_oom_killer_for_real(small_cgroup: Path) -> None:
    done = run(sys.executable, "-c", PARENT, small_cgroup)
    code, _pid, before, message = json.loads(done.stdout)
    assert code == -9
    assert before == 0
    assert message.startswith(f"{KILLED} (memory limit of its cgroup: 64 MiB)")
