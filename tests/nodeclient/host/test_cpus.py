"""The kernel's description of CPUs: lists, cores, and the quota of control groups."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeclient.host.cpus import core_of, cpu_quota, format_cpus, parse_cpus
from nodeclient.host.devices import Host
from tests.support.machines import Machine, write


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set()), ("", set()), ("0,2-2", {0, 2})]
)
def test_a_list_is_read_as_the_kernel_writes_it(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


@given(st.frozensets(st.integers(0, 40)))
def test_what_is_written_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus


def test_what_is_in_a_row_is_written_as_a_range() -> None:
    assert format_cpus({8, 0, 2, 1, 11, 10}) == "0-2,8,10-11"


def test_the_threads_of_a_core_are_one_core(tmp_path: Path) -> None:
    host = Machine(cores_per_complex=2, threads_per_core=2).build(tmp_path)
    assert [core_of(cpu, host) for cpu in range(4)] == [0, 1, 0, 1]
    assert core_of(9, host) == 9


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(system=tmp_path / "sys", processes=tmp_path / "proc")


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
