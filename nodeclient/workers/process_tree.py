"""Finds and kills every process of a local worker group, including those that left its session.

Next to nothing is imported here: the guard imports this too.

Each worker's environment carries a *mark*, a random token that no other nodeclient has. All its descendants inherit it,
even if they make a session of their own or fork twice, and /proc shows it to us. So the leftovers are found without a
register of them, and a process that nodeclient did not start is never touched.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from coordinatord.protocol.errors import OperationalError
from nodeclient.workers.syscalls import pidfd_open, pidfd_send_signal

MARK_VARIABLE = "COORDINATORD_MARK"
"""The environment variable that holds the mark."""

KILL_TIMEOUT_S = 60.0
"""How long killed processes may take to die: the kernel may need tens of seconds to release hundreds of GB of pinned
memory. A process that takes longer hangs in a driver."""

_EMPTY_LOOKS = 2
"""How many looks in a row must find nothing: for some microseconds within exec, a process shows no environment."""

_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "fish", "ksh", "sh", "zsh"})
"""A shell runs its trap only when its child has ended (POSIX, Shell Command Language, 2.11)."""

_DEAD_STATES = frozenset("ZX")
"""Zombie and dead, after proc_pid_stat(5): such a process only waits to be reaped, unless another of its threads lives.
A killed process may be in a driver with one thread, for a while, when its main thread has ended."""

_THREADS = 17
"""The field of /proc/PID/stat with the number of threads, counted after the name."""


class UnkillableError(OperationalError):
    """Processes outlived SIGKILL; `pids` are theirs. All the others have ended."""

    def __init__(self, pids: list[int], timeout_s: float) -> None:
        listed = ", ".join(map(str, pids))
        super().__init__(
            f"these processes are still there {timeout_s:g} s after SIGKILL: {listed}; they belong "
            "to another user, or hang in the kernel (state D in ps), most likely in a GPU driver or a network file "
            "system, and then only a reboot of this host may help"
        )
        self.pids = pids


class ProcessStatus(NamedTuple):
    """What /proc shows of a process that has not been reaped."""

    pid: int
    parent: int
    group: int
    dead: bool
    """Whether it is a zombie: all its threads have ended, and its parent has not reaped it."""


def statuses() -> Iterator[ProcessStatus]:
    """Yield the processes of this PID namespace that may be looked at, zombies included."""
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # pathlib would double the guard's start
                text = file.read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended; or it is another user's, and /proc is mounted with hidepid=1
        # The second field is the program's name in parentheses, which may itself hold blanks and parentheses.
        fields = text[text.rindex(b")") + 2 :].split(maxsplit=_THREADS + 1)
        dead = fields[0].decode() in _DEAD_STATES and int(fields[_THREADS]) <= 1
        yield ProcessStatus(pid, int(fields[1]), int(fields[2]), dead)


def marked(mark: str) -> list[int]:
    """Return the processes that carry `mark`, except this one; only root sees those of other users."""
    own = os.getpid()
    return [pid for pid in _pids() if pid != own and _carries(pid, mark)]


def signal_groups(groups: Collection[int], signum: int) -> None:
    """Send a signal to those processes of some groups that it is meant for; the groups must be the caller's own.

    A process that handles the signal ends its children itself: a training script saves its state, for which it may
    still need the processes that load its data, and torch makes these die of SIGTERM at once. If no process handles the
    signal, all get it. So do the children of a shell, which handles no signal until they have ended.
    """
    members = {status.pid: status for status in statuses() if status.group in groups and not status.dead}
    children: dict[int, list[int]] = {}
    for pid, status in members.items():
        children.setdefault(status.parent, []).append(pid)
    pids = [pid for pid, status in members.items() if status.parent not in members]
    for pid in pids:  # the list grows
        if not _handles(pid, signum) or _is_shell(pid):
            pids += children.get(pid, ())
        _send(pid, members[pid].group, signum)


def _handles(pid: int, signum: int) -> bool:
    """Whether a process catches a signal, or blocks it to take it later (see proc_pid_status(5)).

    Every Python catches SIGINT, whatever its script does; so SIGINT counts only if SIGTERM is caught too. Otherwise all
    processes get it, as they do from a terminal.
    """
    wanted = {signum, signal.SIGTERM} if signum == signal.SIGINT else {signum}
    try:
        with open(f"/proc/{pid}/status") as file:  # noqa: PTH123  # as in `statuses`
            masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigBlk:", "SigCgt:"))]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return all(any(mask & 1 << number - 1 for mask in masks) for number in wanted)


def _is_shell(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _SHELLS  # noqa: PTH115, PTH119  # as in `statuses`
    except OSError:
        return False


def _send(pid: int, group: int, signum: int) -> None:
    try:
        pidfd = pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _group(pid) == group:  # before the pidfd pinned the process, its number may have gone to another one
            pidfd_send_signal(pidfd, signum)
    except (ProcessLookupError, PermissionError):
        return  # the process is gone already, or it changed its user
    finally:
        os.close(pidfd)


def kill_marked(
    mark: str,
    groups: frozenset[int] = frozenset(),
    timeout_s: float = KILL_TIMEOUT_S,
    spared: frozenset[int] = frozenset(),
) -> None:
    """Kill everything that carries `mark` or is in one of the process groups; return when all of it has ended.

    Processes of the groups that are `spared`, and their descendants, live on.

    `groups` is for processes that wiped out their environment; they must be the caller's own groups. A process that has
    ended may still be a zombie, which its parent reaps. Raises `UnkillableError` for what is left after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    empty_looks = 0
    while empty_looks < _EMPTY_LOOKS:
        pidfds = _open(mark, groups, spared)
        empty_looks = 0 if pidfds else empty_looks + 1
        try:
            for pidfd in pidfds.values():
                _kill(pidfd)
            left = await_ends(set(pidfds.values()), deadline)
        finally:
            for pidfd in pidfds.values():
                os.close(pidfd)
        if left:
            raise UnkillableError(sorted(pid for pid, pidfd in pidfds.items() if pidfd in left), timeout_s)


def _open(mark: str, groups: frozenset[int], spared: frozenset[int]) -> dict[int, int]:
    """Return a pidfd for each process that is to be killed, by pid."""
    pids = set(marked(mark))
    if spared:
        pids -= _families(spared)  # after `marked`: a child that is started in between is spared, too
    if groups:
        pids |= {status.pid for status in statuses() if status.group in groups and not status.dead}
    pidfds: dict[int, int] = {}
    for pid in pids - {os.getpid()}:
        try:
            pidfd = pidfd_open(pid)
        except ProcessLookupError:
            continue
        # Before the pidfd pinned the process, its number may have gone to another one.
        if _carries(pid, mark) or (groups and _group(pid) in groups):
            pidfds[pid] = pidfd
        else:
            os.close(pidfd)
    return pidfds


def _families(groups: frozenset[int]) -> set[int]:
    """Return the processes of some process groups, and all that descend from them."""
    present = list(statuses())
    members = {status.pid for status in present if status.group in groups}
    found = set[int]()
    while members:
        found |= members
        members = {status.pid for status in present if status.parent in members} - found
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # as in `statuses`


def _carries(pid: int, mark: str) -> bool:
    return f"{MARK_VARIABLE}={mark}".encode() in _environ(pid).split(b"\0")


def _environ(pid: int) -> bytes:
    """Return the environment of a process, as far as /proc shows it."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for thread in _threads(pid):
            with (
                suppress(FileNotFoundError, ProcessLookupError),
                open(f"/proc/{pid}/task/{thread}/environ", "rb") as file,  # noqa: PTH123  # as in `statuses`
            ):
                return file.read()
    return b""


def _threads(pid: int) -> Iterator[str]:
    """Yield the threads of a process; the main one comes first, and shows nothing if it has ended before the others."""
    yield str(pid)
    yield from os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # as in `statuses`


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _kill(pidfd: int) -> None:
    try:
        pidfd_send_signal(pidfd, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # The process is gone already, or it changed its user. Then it outlives the wait, and is reported.
        return


def await_ends(pidfds: set[int], deadline: float) -> set[int]:
    """Wait until processes have ended, or until `deadline` of the monotonic clock; return the pidfds that are left."""
    left = set(pidfds)
    poll = select.poll()
    for pidfd in left:
        poll.register(pidfd, select.POLLIN)
    while left and (remaining_s := deadline - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(remaining_s * 1000):
            poll.unregister(pidfd)
            left.discard(pidfd)
    return left
