"""The facts for the health check, from directory trees that look like a host's, and a library with NVML's functions."""

import os
import subprocess
from pathlib import Path

import pytest

from nodeclient.core.host_health import GpuFacts, GpuUse, HostFacts, Interface, Xid
from nodeclient.host.devices import Host
from nodeclient.host.host_facts import describe_mount, facts_command, read_facts
from tests.support.machines import compile_c
from tests.support.sick_gpus import NVML

LONG_S = 120.0

LOG = """\
3,1201,91,-;NVRM: Xid (PCI:0000:3b:00): 43, pid=4711, name=python, Ch 00000008
3,1202,92,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Make a host with an interface, an InfiniBand port, and a log of its kernel."""
    for path, text in {
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/eth0/statistics/rx_errors": "3\n",
        "sys/class/net/eth0/statistics/tx_errors": "4\n",
        "sys/class/net/bonding_masters": "bond0\n",
        "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed": "2\n",
        "dev/kmsg": LOG,
        "proc/none": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return Host(tmp_path / "dev", tmp_path / "sys", str(tmp_path / "libnvidia-ml.so.1"), tmp_path / "proc")


def facts_of(host: Host, folders: dict[str, Path] | None = None, within_s: float = LONG_S) -> HostFacts:
    return read_facts(folders or {}, {}, host, within_s)


def test_interfaces_counters_and_errors_of_the_node_s_own_are_read(host: Host) -> None:
    facts = facts_of(host)
    assert facts == HostFacts(
        gpus=(),
        xids=(Xid(1_202, 79, "0000:3b:00"),),
        interfaces={"eth0": Interface("up", 7)},
        lost_links={"mlx5_0/1": 2},
    )


@pytest.mark.slow
def test_gpus_are_read_with_what_they_need(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.devices / "nvidiactl").touch()
    compile_c(NVML, "-shared", "-fPIC", "-o", host.nvml)
    well = (GpuFacts("GPU-1", "0001:3b:03.0", 0), GpuFacts("GPU-2", "0001:3c:03.0", 0))
    assert facts_of(host).gpus == well
    monkeypatch.setenv("TEST_RECOVERY", "2")
    monkeypatch.setenv("TEST_GPUS", "1")
    facts = facts_of(host)
    assert (facts.has_driver, facts.gpus, facts.in_use) == (
        True,
        (GpuFacts("GPU-1", "0001:3b:03.0", 2),),
        (GpuUse("nvidia1", 1 << 30),),
    )
    monkeypatch.setenv("TEST_RECOVERY", "none")
    assert facts_of(host).gpus == (GpuFacts("GPU-1", "0001:3b:03.0", None),)


@pytest.mark.slow
def test_a_driver_that_hangs_leaves_the_other_facts(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compile_c(NVML, "-shared", "-fPIC", "-o", host.nvml)
    monkeypatch.setenv("TEST_NVML_HANGS", "1")
    facts = facts_of(host, {"logs": tmp_path}, within_s=1.0)
    assert facts.gpus is None
    assert "GPUs (no answer within 1 s)" in facts.unread


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    facts = facts_of(Host(tmp_path, tmp_path, str(tmp_path / "none"), tmp_path), {"x": Path("/proc/self")})
    assert (facts.xids, facts.spaces) == (None, ())
    assert set(facts.unread) == {
        "network interfaces (No such file or directory)",
        "the space of /proc/self (x) (its file system has no size)",
    }


def test_the_space_of_a_directory_that_is_yet_to_be_made_is_that_around_it(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [space] = facts_of(host, {"logs": Path("yet/to/be/made")}).spaces
    state = os.statvfs(tmp_path)
    assert (space.what, space.path) == ("logs", str(tmp_path / "yet/to/be/made"))
    assert space.total == state.f_blocks * state.f_frsize > 0
    assert not space.is_read_only
    assert space.above == str(tmp_path)


@pytest.mark.slow
def test_the_program_prints_the_facts_in_one_line(host: Host, tmp_path: Path) -> None:
    compile_c(NVML, "-shared", "-fPIC", "-o", host.nvml)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    odd = {"logs": tmp_path / os.fsdecode(b"a \xff"), "none": Path("/proc/self", os.fsdecode(b"\xff"))}
    ran = subprocess.run(facts_command(odd), env=environ, stdout=subprocess.PIPE, text=True, check=True)
    [line] = ran.stdout.splitlines()
    assert '"GPU-1"' in line
    assert f'"{tmp_path}/a  "' in line
    assert "the space of /proc/self/  (none)" in line


ROOT = "27 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"


@pytest.mark.parametrize(
    ("mounts", "mount"),
    [
        (f"22 1 0:5 / / rw - rootfs rootfs rw\n{ROOT}", "the root file system / (ext4, /dev/sda1)"),
        (f"1 1 0:5 / / rw - rootfs rootfs rw\n{ROOT}", "the root file system / (ext4, /dev/sda1)"),
        (f"{ROOT}40 27 0:41 / /a/b\\040c rw - nfs4 nas:/a rw\n", "/a/b c (nfs4, nas:/a)"),
        (f"{ROOT}40 27 0:41 / /a/b rw - nfs4 nas:/a rw\n", "the root file system / (ext4, /dev/sda1)"),
        (
            f"{ROOT}34 27 0:61 / /a/b\\040c rw - tmpfs tmpfs rw\n35 27 0:62 / /a rw - nfs4 nas:/x rw\n",
            "/a (nfs4, nas:/x)",
        ),
        (f"24 27 0:61 / /a rw - tmpfs tmpfs rw\n{ROOT}", "/a (tmpfs, tmpfs)"),
        (f"{ROOT}34 27 0:61 / /a rw - tmpfs tmpfs rw\n35 34 0:62 / /a rw - xfs /dev/sdb rw\n", "/a (xfs, /dev/sdb)"),
        (f"{ROOT}33 27 0:60 / /a rw - fuse.gcsfuse my\\040bucket rw\n", "/a (fuse.gcsfuse, my bucket)"),
        (f"garbage\n{ROOT}28 27 0:9 / /a rw - tmpfs\n", "the root file system / (ext4, /dev/sda1)"),
    ],
    ids=[
        *("root", "its own parent", "one", "beside", "hidden below", "before the root", "over another", "a blank"),
        "cannot be read",
    ],
)
def test_where_a_directory_is_mounted_is_described_by_the_mount_that_can_be_seen(mounts: str, mount: str) -> None:
    assert describe_mount(Path("/a/b c/d"), mounts) == f"on {mount}"
    assert describe_mount(Path("/a/b c/d"), "") == ""
