"""Which processes use what only one at a time can have: a port that a program has chosen, or a GPU."""

import os
import socket
from pathlib import Path

import pytest

from nodeclient.workers.leftover_processes import resource_users

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def entry(port: int, state: str, inode: int) -> str:
    """Return a line of /proc/net/tcp."""
    return f"   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1 0\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc whose kernel chooses ports from 32768 to 60999."""
    (tmp_path / "self/net").mkdir(parents=True)
    (tmp_path / "self/net/tcp").write_text(
        HEADER + entry(6006, "0A", 1) + entry(40_000, "0A", 2) + entry(8080, "01", 3)
    )
    (tmp_path / "self/net/tcp6").write_text(HEADER + entry(61_000, "0A", 4))
    (tmp_path / "sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "sys/net/ipv4/ip_local_port_range").write_text("32768\t60999\n")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "uses"),
    [
        ("socket:[1]", True),
        ("socket:[4]", True),
        ("socket:[2]", False),
        ("socket:[3]", False),
        ("/dev/nvidia-uvm", True),
        ("/dev/kfd", True),
        ("/dev/nvidiactl", False),
        ("/dev/null", False),
    ],
)
def test_a_port_that_was_chosen_and_a_gpu_count(proc: Path, file: str, uses: bool) -> None:
    (proc / "7/fd").mkdir(parents=True)
    (proc / "7/fd/3").symlink_to(file)
    assert resource_users([7, 8], proc) == ([7] if uses else [])


def test_a_port_that_the_kernel_has_chosen_does_not_count() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert resource_users([os.getpid()]) == []
