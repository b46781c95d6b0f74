"""Finds in /proc what a process waits for outside its job: a program, a lock, a server, or its own streams.

A worker that downloads data, or waits for a lock, holds up all others, who then wait in a collective. A restart would
not help, but a report that names what it waits for does. The module examines the system call of the main thread
(proc_pid_syscall(5), proc_locks(5)), and finds nothing if the kernel hides that.

The patterns below are names of functions in the kernel, which differ between its releases.
"""

from __future__ import annotations

import ipaddress
import re
import stat
import struct
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from nodeclient.host.process_state import (
    PROC,
    SOCKET_INODE,
    SOCKET_PEER,
    STAT_PARENT,
    open_files,
    read_if_there,
    sockets,
    stat_fields,
    with_descendants,
)

_WAITS_FOR_CHILD = "do_wait"

_SLEEPS = re.compile(r".*nanosleep")
"""The kernel functions of a timed sleep: `Popen.wait` with a timeout and polling scripts use it."""

_WAITS_FOR_LOCK = re.compile(r"(?:locks|flock|posix)_lock_inode_wait|fcntl_setlk|do_lock_file_wait")

_USES_FILE = re.compile(r"(?:anon_)?pipe_\w+|wait_woken|(?:n_)?tty_\w+|sk_wait_data|inet_wait_for_connect")
"""The kernel functions of one pipe, terminal or connection, whose descriptor is the first argument of the call."""

_POLLS = re.compile(r"poll_schedule_timeout.*|do_(?:sys_)?poll.*|do_select.*")
"""The kernel functions of poll and select. If the first argument is 0, there are no descriptors, and the
thread only sleeps."""

_POLLS_SET = re.compile(r"(?:do_)?ep(?:oll)?_(?:poll|wait)")
"""The kernel functions of an epoll set, which is the first argument."""

_POLLED = struct.Struct("=ihh")
"""A struct pollfd of poll(2), which begins with the descriptor."""

_POLLED_MAX = 64
"""The most descriptors of a poll that are examined. A process that waits for one thing polls few."""

_SELECTED_MAX = 1_024
"""The descriptors of an fd_set of select(2), each of which is a bit."""

_ADDRESS_MIN = 65_536
"""No memory address is lower. A smaller first argument is that of select: the highest descriptor plus one."""

_STREAMS = {0: "its input", 1: "its output to be read", 2: "its output to be read"}
"""What a process waits for at its own standard streams, by descriptor."""

_ANCESTORS_MAX = 32
"""The most ancestors of a process that are followed. Ids may be reused meanwhile, and must make no endless loop."""


def awaited_outside(pid: int, waits_in: str, workers: Collection[int], store_port: int) -> str:
    """Describe what the main thread of a process waits for outside its job; empty if nothing is found.

    It may be a living child, the program at the other end of a pipe, a lock that no process of the job has, a server,
    or the other end of the process's own input and output. Of several programs, the last one is named. A fork of
    Python counts only if the process waits for its end: other forks, which may load data, are a part of the worker.

    `waits_in` is the kernel function of the main thread, and `workers` are the processes of the job on this host. A
    connection to `store_port` does not count: there rank 0 serves torch's store, by which ranks wait for each other.
    """
    if waits_in == _WAITS_FOR_CHILD:
        children = [child for child in with_descendants(pid)[1:] if _is_living_child(child, pid)]
        # waitpid(2) and waitid(2) have the child among their first two arguments, unless they wait for any child.
        awaited = [child for child in children if child in _arguments(pid)] or children
        return _name(awaited[-1]) if awaited else ""
    if _SLEEPS.fullmatch(waits_in) or (_POLLS.fullmatch(waits_in) and _arguments(pid)[:1] == [0]):
        programs = _programs(pid)
        return _name(programs[-1]) if programs else ""
    if _WAITS_FOR_LOCK.fullmatch(waits_in):
        return _lock_owner(pid, workers)
    files = (_target(pid, number) for number in _descriptors(pid, waits_in))
    return next(filter(None, (_other_end(pid, file, store_port) for file in files if file)), "")


def _arguments(pid: int) -> list[int]:
    """Return the first two arguments of a process's system call; none if the kernel does not show them."""
    return [int(word, 16) for word in read_if_there(PROC / str(pid) / "syscall").split()[1:3]]


def _is_living_child(pid: int, parent: int) -> bool:
    state, of, *_ = stat_fields(pid) or ("X", "0")
    return state not in {"Z", "X"} and int(of) == parent


def _name(pid: int) -> str:
    return f"the program {read_if_there(PROC / str(pid) / 'comm').strip() or '?'} (process {pid})"


def _programs(pid: int) -> list[int]:
    """Return the descendants that are other programs: forks, and processes of multiprocessing, belong to the worker."""
    own = _command(pid)
    commands = {child: _command(child) for child in with_descendants(pid)[1:]}
    return [
        child for child, command in commands.items() if command not in ("", own) and "multiprocessing" not in command
    ]


def _command(pid: int) -> str:
    """Return the command line of a process; empty if it is over."""
    return read_if_there(PROC / str(pid) / "cmdline")


def _lock_owner(pid: int, workers: Collection[int]) -> str:
    """Name the owner of the lock that a process waits for; empty if that is a process of the job."""
    locks = [line.split() for line in read_if_there(PROC / "locks").splitlines()]
    # A line with `->` is about a process that waits for the lock of the same number.
    awaited = {words[0] for words in locks if words[1:2] == ["->"] and words[5:6] == [str(pid)]}
    holders = [int(words[4]) for words in locks if words[0] in awaited and words[1] != "->"]
    if any(worker in workers for holder in holders for worker in _with_ancestors(holder)):
        return ""
    known = [holder for holder in holders if holder > 0]  # others are not visible here
    return f"a lock of {_name(known[0])}" if known else "a lock of another process"


def _with_ancestors(pid: int) -> Iterator[int]:
    for _ in range(_ANCESTORS_MAX):
        yield pid
        parents = stat_fields(pid)[STAT_PARENT : STAT_PARENT + 1]
        if not parents:
            return
        pid = int(parents[0])


def _descriptors(pid: int, waits_in: str) -> list[int]:
    first, second = _arguments(pid) or (-1, 0)
    if _USES_FILE.fullmatch(waits_in):
        return [first]
    if _POLLS.fullmatch(waits_in) and first < _ADDRESS_MIN:
        bits = int.from_bytes(_memory(pid, second, _SELECTED_MAX // 8), "little")
        return [number for number in range(min(first, _SELECTED_MAX)) if bits >> number & 1]
    if _POLLS.fullmatch(waits_in):
        polled = _memory(pid, first, _POLLED.size * min(second, _POLLED_MAX))
        return [number for number, _, _ in _POLLED.iter_unpack(polled[: len(polled) // _POLLED.size * _POLLED.size])]
    if _POLLS_SET.fullmatch(waits_in):
        lines = read_if_there(PROC / str(pid) / "fdinfo" / str(first)).splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
    return []


def _memory(pid: int, address: int, size: int) -> bytes:
    """Read an argument of the system call from the memory of a process; less or nothing on failure."""
    try:
        with (PROC / str(pid) / "mem").open("rb", buffering=0) as file:
            file.seek(address)
            return file.read(size)
    except (OSError, OverflowError, ValueError):
        return b""


def _target(pid: int, number: int) -> str:
    """Return the target of a descriptor: `pipe:[7]`, `/dev/pts/1` or `socket:[8]`; empty for anything else."""
    path = PROC / str(pid) / "fd" / str(number)
    try:
        found, mode = str(path.readlink()), path.stat().st_mode
    except OSError:
        return ""
    is_terminal = stat.S_ISCHR(mode) and found.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    return found if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or is_terminal else ""


def _other_end(pid: int, file: str, store_port: int) -> str:
    """Name the other end of a descriptor's target; empty if not known."""
    if file.startswith("/dev/"):
        return "its terminal"
    if file.startswith("socket:"):
        return _server(pid, file.removeprefix("socket:[").removesuffix("]"), store_port)
    own = next((words for number, words in _STREAMS.items() if _target(pid, number) == file), "")
    programs = () if own else reversed(_programs(pid))
    holders = (program for program in programs if Path(file) in open_files(PROC / str(program)))
    return own or next((_name(holder) for holder in holders), "")


def _server(pid: int, inode: str, store_port: int) -> str:
    """Name the other end of a connection; empty if there is none, or if it is torch's store."""
    for columns in sockets(PROC / str(pid), "tcp", "tcp6", "udp", "udp6"):
        if columns[SOCKET_INODE] == inode:
            words, _, port = columns[SOCKET_PEER].partition(":")
            number = int(port, 16)
            return f"an answer from {_address(words)}:{number}" if number not in {0, store_port} else ""
    return ""


def _address(words: str) -> str:
    """Convert an address from the kernel's form, numbers of 32 bits in the byte order of this host."""
    numbers = (int(words[at : at + 8], 16) for at in range(0, len(words), 8))
    address = ipaddress.ip_address(b"".join(number.to_bytes(4, sys.byteorder) for number in numbers))
    known = str(getattr(address, "ipv4_mapped", None) or address)
    return f"[{known}]" if ":" in known else known
