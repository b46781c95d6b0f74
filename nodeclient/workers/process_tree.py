"""Finds and kills every process of a local worker group, including those that left its session.

Each worker's environment has a *mark*: a random token of its nodeclient, and a number of the worker. All descendants
inherit it, even those that make a session or fork twice, and /proc shows it. So they are found without bookkeeping, and
no other process is ever touched. The token without a number is the mark of the nodeclient, and matches those of all its
workers.

A pid may go to another process at any moment. So processes are signalled by pidfds, descriptors that stay with one
process. This module imports next to nothing, because the guard imports it too, and has to start fast.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from coordinatord.protocol.errors import OperationalError
from nodeclient.host.syscalls import pidfd_open, pidfd_send_signal

MARK_VARIABLE = "COORDINATORD_MARK"
"""The environment variable with the mark."""

KILL_TIMEOUT_S = 60.0
"""How long killed processes may take to die: the kernel may need tens of seconds to release hundreds of GB of pinned
memory. A slower process hangs in a driver."""

_OPENED_SHARE = 4
"""One scan opens at most this process's limit of descriptors divided by this. A script may leave thousands of processes
behind, and later scans find the rest."""

_SCANS = 2
"""How often all processes are scanned: for some microseconds within exec, a process shows no environment. Where
processes are killed, this many scans in a row must find nothing."""

_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "fish", "ksh", "sh", "zsh"})
"""The names of shells. They handle a signal only after the end of their child (POSIX, Shell Command Language, 2.11)."""

_DEAD_STATES = frozenset("ZX")
"""Zombie and dead (proc_pid_stat(5)): such a process only waits to be reaped, unless another of its threads lives. A
thread of a killed process may be in a driver for a while after the end of the main thread."""

_THREADS = 17
"""The field of /proc/PID/stat with the number of threads, counted after the name."""


class UnkillableError(OperationalError):
    """Processes outlived SIGKILL. All others have ended."""

    def __init__(self, pids: list[int], timeout_s: float) -> None:
        listed = ", ".join(map(str, pids))
        super().__init__(
            f"these processes are still there {timeout_s:.0f} s after SIGKILL: {listed}; they belong "
            "to another user, or hang in the kernel (state D in ps), most likely in a GPU driver or a network file "
            "system, and then only a reboot of this host may help"
        )


class ProcessStatus(NamedTuple):
    """The status of an unreaped process in /proc."""

    pid: int
    parent: int
    group: int
    dead: bool
    """Whether it is a zombie: all its threads have ended, and its parent has not reaped it."""
    name: str
    """The name of its program, cut after 15 bytes. A zombie still has it."""

    @property
    def is_shell(self) -> bool:
        """Whether it is or was a shell."""
        return self.name in _SHELLS


def statuses() -> Iterator[ProcessStatus]:
    """Yield the visible processes of this PID namespace, zombies included."""
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # pathlib would double the guard's start
                text = file.read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or it is another user's and /proc is mounted with hidepid=1
        # The second field is the program's name in parentheses, which may itself hold blanks and parentheses.
        name, _, rest = text.partition(b"(")[2].rpartition(b")")
        fields = rest.split(maxsplit=_THREADS + 1)
        dead = fields[0].decode() in _DEAD_STATES and int(fields[_THREADS]) <= 1
        yield ProcessStatus(pid, int(fields[1]), int(fields[2]), dead, name.decode(errors="replace"))


def marked(mark: str) -> list[int]:
    """Return the processes with a mark, except this one; only root sees those of other users."""
    own = os.getpid()
    return [pid for pid in _pids() if pid != own and _carries(pid, mark)]


def signal_groups(groups: Collection[int], signum: int) -> None:
    """Send a signal to the processes of these groups, except children of processes that handle it.

    The leaders of the groups must be unreaped children of the caller, as for `kill_marked`.

    A process that handles the signal ends its children itself. A training script, for example, may need the processes
    that load its data until it has saved, and torch makes these die of SIGTERM at once. The children of a shell do get
    the signal, because a shell handles none before they have ended.
    """
    members = {status.pid: status for status in statuses() if status.group in groups and not status.dead}
    children: dict[int, list[int]] = {}
    for pid, status in members.items():
        children.setdefault(status.parent, []).append(pid)
    pids = [pid for pid, status in members.items() if status.parent not in members]
    for pid in pids:  # the list grows
        if not _handles(pid, signum) or _is_shell(pid):
            pids += children.get(pid, ())
        pidfd = _open_same(pid, _group, members[pid].group)
        if pidfd is not None:
            send(pidfd, signum)
            os.close(pidfd)


def _handles(pid: int, signum: int) -> bool:
    """Whether a process catches a signal, or blocks it to handle it later (proc_pid_status(5)).

    Every Python catches SIGINT, whatever its script does. So SIGINT counts only if SIGTERM is caught too, and otherwise
    all processes get it, as they do from a terminal.
    """
    wanted = {signum, signal.SIGTERM} if signum == signal.SIGINT else {signum}
    try:
        with open(f"/proc/{pid}/status") as file:  # noqa: PTH123  # as in `statuses`
            masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigBlk:", "SigCgt:"))]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return all(any(mask & 1 << number - 1 for mask in masks) for number in wanted)


def _is_shell(pid: int) -> bool:
    """Whether a process is a shell, even one that runs a script: its status then has the name of the script."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _SHELLS  # noqa: PTH115, PTH119  # as in `statuses`
    except OSError:
        return False


def _open_same(pid: int, read: Callable[[int], object], found: object) -> int | None:
    """Return a pidfd of the process of which `read` has returned `found`; None if it no longer does."""
    try:
        pidfd = pidfd_open(pid)
    except ProcessLookupError:
        return None
    if read(pid) == found:  # else the number may have gone to another process before the pidfd pinned it
        return pidfd
    os.close(pidfd)
    return None


def kill_marked(mark: str | None, groups: frozenset[int] = frozenset(), timeout_s: float = KILL_TIMEOUT_S) -> None:
    """Kill all processes with a mark, if one is given, and those in the process groups; wait until they have ended.

    The leaders of `groups` must be unreaped children of the caller, so that their numbers are not reused. An ended
    process may be a zombie until its parent reaps it. Raises `UnkillableError` for processes that live after
    `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    empty_scans = 0
    while empty_scans < _SCANS:
        pidfds = _pidfds_to_kill(mark, groups)
        empty_scans = 0 if pidfds else empty_scans + 1
        try:
            kill(pidfds, max(0.0, deadline - time.monotonic()))
        finally:
            for pidfd in pidfds.values():
                os.close(pidfd)


def kill(pidfds: Mapping[int, int], timeout_s: float = KILL_TIMEOUT_S) -> None:
    """Kill processes, pidfds by process id, and wait for their ends. Raises `UnkillableError` after `timeout_s`."""
    for pidfd in pidfds.values():
        send(pidfd, signal.SIGKILL)
    left = await_ends(set(pidfds.values()), time.monotonic() + timeout_s)
    if left:
        raise UnkillableError(sorted(pid for pid, pidfd in pidfds.items() if pidfd in left), timeout_s)


def pidfds_by_mark(marks: Collection[str], groups: Mapping[int, str]) -> dict[str, dict[int, int]]:
    """Return the processes with each mark, as pidfds by process id.

    A process without a mark, which may have wiped its environment, has the mark that `groups` gives its process group.
    If there are too many for the descriptors of this process, some are left out.
    """
    families: dict[str, dict[int, int]] = {mark: {} for mark in marks}
    opened_max = _opened_max()

    def mark_of(pid: int) -> str | None:
        own = (variable.partition("=") for variable in _environ(pid).decode(errors="replace").split("\0"))
        carried = (value for name, _, value in own if name == MARK_VARIABLE and value in families)
        return next(carried, groups.get(_group(pid)))

    for _ in range(_SCANS):
        for status in statuses():
            if sum(map(len, families.values())) == opened_max:
                return families
            mark = mark_of(status.pid)
            if mark is None or status.dead or status.pid in families[mark]:
                continue
            pidfd = _open_same(status.pid, mark_of, mark)
            if pidfd is not None:
                families[mark][status.pid] = pidfd
    return families


def _pidfds_to_kill(mark: str | None, groups: frozenset[int]) -> dict[int, int]:
    """Return pidfds of processes with the mark or in the groups, by pid; if there are too many, some are left out."""
    pids = set() if mark is None else set(marked(mark))
    if groups:
        pids |= {status.pid for status in statuses() if status.group in groups and not status.dead}
    pidfds: dict[int, int] = {}
    opened_max = _opened_max()

    def is_wanted(pid: int) -> bool:
        return (mark is not None and _carries(pid, mark)) or _group(pid) in groups

    for pid in pids - {os.getpid()}:
        if len(pidfds) == opened_max:
            break
        pidfd = _open_same(pid, is_wanted, True)
        if pidfd is not None:
            pidfds[pid] = pidfd
    return pidfds


def _opened_max() -> int:
    """Return how many processes one scan opens at most; a negative number, which is never reached, without a limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _OPENED_SHARE


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # as in `statuses`


def _carries(pid: int, mark: str) -> bool:
    """Whether a process has this mark, or the mark of a worker with this token."""
    variable = f"{MARK_VARIABLE}={mark}".encode()
    return any(own == variable or own.startswith(variable + b":") for own in _environ(pid).split(b"\0"))


def _environ(pid: int) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for thread in _threads(pid):
            with (
                suppress(FileNotFoundError, ProcessLookupError),
                open(f"/proc/{pid}/task/{thread}/environ", "rb") as file,  # noqa: PTH123  # as in `statuses`
            ):
                return file.read()
    return b""


def _threads(pid: int) -> Iterator[str]:
    """Yield the threads of a process, the main one first. A main thread that ended before the others shows nothing."""
    yield str(pid)
    yield from os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # as in `statuses`


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def send(pidfd: int, signum: int) -> None:
    """Send a signal to a process, unless it is gone, or has changed its user."""
    with suppress(ProcessLookupError, PermissionError):
        pidfd_send_signal(pidfd, signum)


def await_ends(pidfds: set[int], deadline: float) -> set[int]:
    """Wait until processes have ended, or until `deadline` of the monotonic clock; return the pidfds of the others."""
    left = set(pidfds)
    poll = select.poll()
    for pidfd in left:
        poll.register(pidfd, select.POLLIN)
    while left and (remaining_s := deadline - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(remaining_s * 1000):
            poll.unregister(pidfd)
            left.discard(pidfd)
    return left
