"""How many CPUs and how much memory the kernel says that this host or container has."""

from pathlib import Path

import pytest

from nodeclient.host.capacity import Memory, cpu_quota, memory
from nodeclient.host.devices import Host
from tests.support.machines import write

KIB = 1024


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host with 8,000 KiB of memory, of which 5,000 are available."""
    host = Host(system=tmp_path / "sys", processes=tmp_path / "proc")
    write(
        host.processes / "meminfo",
        "MemTotal:    8000 kB\nMemFree:  1000 kB\nMemAvailable:   5000 kB\nHugePages_Total: 0",
    )
    return host


def test_without_control_groups_there_is_no_quota(host: Host) -> None:
    assert cpu_quota(host) is None


def test_the_least_quota_on_the_way_to_the_root_counts(host: Host) -> None:
    write(host.processes / "self/cgroup", "0::/slurm/job_7/step_0")
    groups = host.system / "fs/cgroup"
    write(groups / "slurm/job_7/step_0/cpu.max", "max 100000")
    assert cpu_quota(host) is None
    write(groups / "slurm/job_7/cpu.max", "150000 100000")
    write(groups / "slurm/cpu.max", "800000 100000")
    assert cpu_quota(host) == 1.5


def test_in_a_container_the_root_that_it_sees_is_its_own(host: Host) -> None:
    write(host.processes / "self/cgroup", "0::/../somebody/else")
    write(host.system / "fs/cgroup/cpu.max", "400000 100000")
    assert cpu_quota(host) == 4


def test_the_older_version_of_control_groups_is_read(host: Host) -> None:
    write(host.processes / "self/cgroup", "9:memory:/docker/1\n3:cpuacct,cpu:/docker/1\n0::/")
    group = host.system / "fs/cgroup/cpu/docker/1"
    write(group / "cpu.cfs_quota_us", "-1")
    write(group / "cpu.cfs_period_us", "100000")
    assert cpu_quota(host) is None
    write(group / "cpu.cfs_quota_us", "250000")
    assert cpu_quota(host) == 2.5


def test_without_control_groups_the_memory_is_the_host_s(host: Host) -> None:
    assert memory(host) == Memory(8000 * KIB, 5000 * KIB)


def test_the_least_that_any_group_grants_counts_and_caches_are_free(host: Host) -> None:
    write(host.processes / "self/cgroup", "0::/slurm/job_7")
    group = host.system / "fs/cgroup/slurm/job_7"
    write(group / "memory.max", "max")
    write(group / "memory.current", str(900 * KIB))
    assert memory(host) == Memory(8000 * KIB, 5000 * KIB)
    write(group.parent / "memory.max", str(2000 * KIB))
    write(group.parent / "memory.current", str(1900 * KIB))
    write(group.parent / "memory.stat", f"anon 7\ninactive_file {300 * KIB}")
    assert memory(host) == Memory(2000 * KIB, 400 * KIB)


def test_a_group_of_the_older_version_counts_as_well(host: Host) -> None:
    write(host.processes / "self/cgroup", "9:memory:/docker/1\n3:cpu:/docker/1\n0::/")
    group = host.system / "fs/cgroup/memory/docker/1"
    write(group / "memory.limit_in_bytes", str(3000 * KIB))
    write(group / "memory.usage_in_bytes", str(3100 * KIB))
    write(group / "memory.stat", f"inactive_file 1\ntotal_inactive_file {50 * KIB}")
    write(group.parent / "memory.limit_in_bytes", str(2**63 - 4096))
    write(group.parent / "memory.usage_in_bytes", "0")
    assert memory(host) == Memory(3000 * KIB, 0)
