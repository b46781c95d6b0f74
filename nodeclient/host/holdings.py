"""Finds processes that hold what only one at a time can have: a GPU, or a port that a program has chosen."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from nodeclient.host.gpu_memory import open_files
from nodeclient.host.process_state import read_if_there

_GPU_FILES = frozenset({"/dev/nvidia-uvm", "/dev/kfd"})
"""Only a process that uses CUDA or ROCm opens these: NVML, with which trackers watch GPUs, opens others."""

_LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp (proc_pid_net(5)): TCP_LISTEN of linux/tcp_states.h."""

_ADDRESS, _STATE, _INODE = 1, 3, 9
"""Fields of a line there."""


def holders(pids: Collection[int], proc: Path = Path("/proc")) -> list[int]:
    """Return those of the processes that hold a GPU, or listen on a port that the kernel gives to nobody by itself.

    Ports that the kernel has chosen do not count: the next program gets another one. A process that was forked has the
    listening sockets of its parent, such as that of torch's TCPStore.
    """
    taken = _GPU_FILES | _listening(proc)
    return [pid for pid in pids if any(str(file) in taken for file in open_files(proc / str(pid)))]


def _listening(proc: Path) -> frozenset[str]:
    """Return the sockets that listen on ports which programs have chosen, as the links of descriptors name them."""
    chosen_by_kernel = read_if_there(proc / "sys/net/ipv4/ip_local_port_range").split()
    first, last = map(int, chosen_by_kernel or (1, 0))
    lines = "".join(read_if_there(proc / "self/net" / table) for table in ("tcp", "tcp6")).splitlines()
    sockets = [line.split() for line in lines if ":" in line]
    return frozenset(
        f"socket:[{fields[_INODE]}]"
        for fields in sockets
        if fields[_STATE] == _LISTENS and not first <= int(fields[_ADDRESS].rpartition(":")[2], 16) <= last
    )
