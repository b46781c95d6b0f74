"""Errors of GPUs in the kernel's log."""

from pathlib import Path

from nodeclient.core.host_health import Xid
from nodeclient.host.devices import Host
from nodeclient.host.kernel_log import read_records, xids

LOG = """\
6,1200,90,-;nvidia-nvlink: Nvlink Core is being initialized
3,1201,91,-;NVRM: Xid (PCI:0000:3b:00): 43, pid=4711, name=python, Ch 00000008
 SUBSYSTEM=pci
3,1202,92,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
3,1203,93,-;python: NVRM: Xid 13 is what a program may write about
"""


def test_each_error_of_a_gpu_is_found_once(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(LOG)
    assert xids(read_records(Host(devices=tmp_path))) == [Xid(1_201, 43, "0000:3b:00"), Xid(1_202, 79, "0000:3b:00")]


def test_a_log_that_may_not_be_read_has_no_records(tmp_path: Path) -> None:
    assert read_records(Host(devices=tmp_path)) == []
