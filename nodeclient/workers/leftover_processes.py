"""Finds, watches and ends leftovers: the processes that a worker has started, and that live when it has ended.

A leftover gets time to finish its work; `core.leftover_stages` decides how much. It is found by the mark of its worker
in its environment, or by the worker's process group if it has wiped its environment.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import Signals

from msgspec import Struct

from coordinatord.protocol.text import clip
from coordinatord.runtime.tasks import Tasks
from coordinatord.runtime.timers import DeadlineTimer
from nodeclient.core import leftover_stages
from nodeclient.core.effects import Level
from nodeclient.core.leftover_stages import Leftover
from nodeclient.host.process_state import SOCKET_ADDRESS, SOCKET_INODE, SOCKET_STATE, open_files, read_if_there, sockets
from nodeclient.workers.process_tree import UnkillableError, kill, kill_marked, pidfds_by_mark, send

DEAD_WITHIN_S = 5.0
"""How long to wait for the ends of killed leftovers. If the node ends before them, its guard waits for them."""

PROGRAM_MAX = 64
"""The limit of a program's name in characters."""

_GPU_FILES = frozenset({"/dev/nvidia-uvm", "/dev/kfd"})
"""The device files of CUDA and ROCm. NVML, with which trackers watch GPUs, opens others."""

_LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp (proc_pid_net(5)): TCP_LISTEN of linux/tcp_states.h."""


class EndedWorker(Struct, frozen=True):
    """A worker that has ended."""

    mark: str
    group: int | None
    """Its process group; None if it was reaped, because the number may be another process's by now."""
    rank: str
    """Its global rank."""


class LeftoverProcesses:
    """The leftovers of one node. All methods are for the main thread, in the running event loop.

    `watch` is called in the sweep at the end of each round, `free_resources` before the next round and before the node
    looks at GPU memory, `on_signal` when the node is asked to leave, and `end` when it ends. When workers are started,
    and when they are asked to end, the node tells `stages` itself.
    """

    def __init__(self, stop_timeout_s: float, tasks: Tasks, notify: Callable[[Level, str], None]) -> None:
        """Begin with none; `notify` takes a text for the user."""
        self.stages = leftover_stages.Leftovers(stop_timeout_s)
        """Decides which signals the leftovers are sent, and when."""
        self._tasks = tasks
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(self._loop, self._send_due)
        self._watched: dict[str, dict[int, Leftover]] = {}
        """The leftovers by the mark of their worker, and by pidfd."""
        self._ranks: dict[str, str] = {}
        """The ranks of these workers by mark."""
        self._scanning = asyncio.Lock()
        self._none_left = asyncio.Event()
        self._none_left.set()

    async def watch(self, workers: Sequence[EndedWorker]) -> None:
        """Find and watch the leftovers of workers. Workers with a group must be reaped only after this."""
        if not workers:
            return
        await self._scan(workers)
        self.stages.add([worker.mark for worker in workers if worker.mark in self._watched], self._loop.time())
        self._timer.arm(self.stages.next_deadline())

    def on_signal(self) -> None:
        """Record a signal that asks the node to leave."""
        self.stages.record_signal(self._loop.time())
        self._timer.arm(self.stages.next_deadline())

    async def free_resources(self) -> None:
        """Kill the leftovers with a GPU or a port that the next round may need. Raises `UnkillableError`."""
        known = {pidfd: leftover for watched in self._watched.values() for pidfd, leftover in watched.items()}
        present = {leftover.pid: leftover for leftover in known.values()}
        with _duplicates(known) as pidfds:
            users = await asyncio.to_thread(resource_users, pidfds) if pidfds else []
            for pid in users:
                named = leftover_stages.named([present[pid]])
                self._notify(
                    Level.WARNING, f"killed, since it has a GPU or a port that the next round may need: {named}"
                )
            await asyncio.to_thread(kill, {pid: pidfds[pid] for pid in users})

    async def end(self) -> None:
        """Wait until no leftover lives. Those that do not end in time are killed."""
        end_by, tell_at = self.stages.end(self._loop.time()), self._loop.time() + leftover_stages.SAID_AFTER_S
        self._timer.arm(self.stages.next_deadline())
        await self._are_gone_by(tell_at)
        texts = [leftover_stages.named([*known.values()]) for known in self._watched.values() if known]
        if texts and tell_at < end_by:
            self._notify(Level.INFO, leftover_stages.awaited(texts, end_by - self._loop.time()))
        await self._are_gone_by(end_by + DEAD_WITHIN_S)

    async def _are_gone_by(self, until: float) -> None:
        """Wait until no leftover lives, or until this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._none_left.wait()

    async def _scan(self, ended: Sequence[EndedWorker] = ()) -> None:
        """Find and watch the leftovers of workers that have just `ended`, and new leftovers of other workers."""
        async with self._scanning:  # no other scan may add or remove marks while the thread below reads them
            self._watched |= {worker.mark: {} for worker in ended}
            self._ranks |= {worker.mark: worker.rank for worker in ended}
            groups = {worker.group: worker.mark for worker in ended if worker.group is not None}
            # In a thread, because reading all of /proc takes milliseconds.
            found = await asyncio.to_thread(pidfds_by_mark, self._watched.keys(), groups)
            for mark, pidfds in found.items():
                known = {leftover.pid for leftover in self._watched[mark].values()}
                for pid, pidfd in pidfds.items():
                    if pid in known:
                        os.close(pidfd)
                    else:
                        self._watched[mark][pidfd] = Leftover(pid, program_of(pid), self._ranks[mark])
                        self._loop.add_reader(pidfd, self._on_end, mark, pidfd)
            for mark in [mark for mark, leftovers in self._watched.items() if not leftovers]:
                del self._watched[mark], self._ranks[mark]
                self.stages.remove(mark)
            if self._watched:
                self._none_left.clear()
            else:
                self._none_left.set()

    def _on_end(self, mark: str, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        del self._watched[mark][pidfd]
        if not self._watched[mark]:
            self._tasks.spawn(self._scan(), name="leftovers")  # it may have started others

    def _send_due(self, now: float) -> None:
        for mark, signum in self.stages.due(now):
            self._tasks.spawn(self._send(mark, signum), name="leftovers")
        self._timer.arm(self.stages.next_deadline())

    async def _send(self, mark: str, signum: Signals) -> None:
        await self._scan()
        if leftovers := self._watched.get(mark):
            for pidfd in leftovers:
                send(pidfd, signum)
            if signum is Signals.SIGKILL:
                self._notify(Level.WARNING, leftover_stages.killed([leftover_stages.named([*leftovers.values()])]))
                with _duplicates(leftovers) as pidfds:
                    try:
                        # By mark, the first call also finds what they have forked meanwhile. The second one waits for
                        # those without a mark: they have wiped their environment, or hang in the kernel as they end.
                        await asyncio.to_thread(kill_marked, mark, timeout_s=DEAD_WITHIN_S)
                        await asyncio.to_thread(kill, pidfds, DEAD_WITHIN_S)
                    except UnkillableError as error:
                        self._notify(Level.ERROR, str(error))


@contextmanager
def _duplicates(leftovers: Mapping[int, Leftover]) -> Iterator[dict[int, int]]:
    """Yield duplicates of pidfds by process id: a pidfd itself is closed as soon as its process ends."""
    pidfds: dict[int, int] = {}
    try:
        for pidfd, leftover in leftovers.items():
            pidfds[leftover.pid] = os.dup(pidfd)
        yield pidfds
    finally:
        for pidfd in pidfds.values():
            os.close(pidfd)


def program_of(pid: int) -> str:
    """Return the name of a process's program, from its command line, or else the kernel's name for it.

    A process that has ended meanwhile has neither.
    """
    called = read_if_there(Path(f"/proc/{pid}/cmdline")).partition("\0")[0]
    name = os.path.basename(called) or read_if_there(Path(f"/proc/{pid}/comm")).strip()  # noqa: PTH119 - any text
    return clip(name, PROGRAM_MAX) or "a program that has ended"


def resource_users(pids: Collection[int], proc: Path = Path("/proc")) -> list[int]:
    """Return the processes that have a GPU, or listen on a port that their program chose.

    A port that the kernel assigned does not count, because the next program gets another one. A forked process has the
    listening sockets of its parent, such as that of torch's TCPStore.
    """
    taken = _GPU_FILES | _listening(proc)
    return [pid for pid in pids if any(str(file) in taken for file in open_files(proc / str(pid)))]


def _listening(proc: Path) -> frozenset[str]:
    """Return the sockets that listen on ports chosen by programs, as the links of descriptors name them."""
    chosen_by_kernel = read_if_there(proc / "sys/net/ipv4/ip_local_port_range").split()
    first, last = map(int, chosen_by_kernel or (1, 0))  # no port lies between 1 and 0
    return frozenset(
        f"socket:[{columns[SOCKET_INODE]}]"
        for columns in sockets(proc / "self", "tcp", "tcp6")
        if columns[SOCKET_STATE] == _LISTENS
        and not first <= int(columns[SOCKET_ADDRESS].rpartition(":")[2], 16) <= last
    )
