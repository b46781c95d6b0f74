"""The local worker group as processes: starts, signals, watches and sweeps them, without decisions.

To sweep is to end all workers of a round with their process groups, before the next round begins. Each worker leads a
session, and so a process group. The worker is reaped only once the rest of its group has ended or is watched by
`leftover_processes`: until then its number is not reused, and a signal to the group hits no other process. A pidfd in
the event loop shows an exit within milliseconds, without polling or threads.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec.structs import replace

from nodeclient.host.syscalls import pidfd_open
from nodeclient.output.output import WorkerStreams
from nodeclient.workers import process_tree
from nodeclient.workers.leftover_processes import EndedWorker
from nodeclient.workers.spawn import Spawn, WorkerCommand, spawn

POLL_S = 0.01
"""How often `dismiss` checks whether its workers have ended. Their pidfds lead to `on_exit`, and not to `dismiss`."""

ContinueWorker = Callable[[int, int, int], None]
"""Makes a parked process enter a round; takes its local rank, and the descriptors of its stdout and stderr."""

WatchLeftovers = Callable[[Sequence[EndedWorker]], Awaitable[None]]
"""Finds the leftovers of ended workers, as `LeftoverProcesses.watch` does. The workers are reaped after it returns."""


@dataclass(slots=True)
class _Worker:
    """A started worker that is not yet reaped."""

    local_rank: int
    pid: int
    mark: str
    """The mark in the environment of all its descendants."""
    rank: str
    """Its global rank in its present round."""
    watched: set[int] = field(default_factory=set)
    """The watched pidfds: the worker's own, and after its end those of the rest of its group."""
    reported: bool = False
    """Whether its exit was reported."""
    parked: bool = False
    """Whether it has left its round, and waits for the next one."""
    ended_as: int | None = None
    """The exit code of its program, if its process lingered and was killed."""

    def exit_code(self) -> int | None:
        """Return the exit code without reaping the worker; None before its end."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return self.ended_as if code == -signal.SIGKILL and self.ended_as is not None else code


class LocalWorkers:
    """One node's workers of one round at a time; all methods are for the main thread, in the running event loop.

    After `terminate`, a worker counts as exited when all of its process group has. So a shell around the training
    script may die of SIGTERM at once while the script writes its checkpoint. If a signal kills such a shell before, the
    rest of its group, which is the training, is killed too.
    """

    def __init__(
        self,
        mark: str,
        on_exit: Callable[[int, int], None],
        watch_leftovers: WatchLeftovers,
        spawn: Spawn = spawn,
        on_outlived: Callable[[int, Sequence[int]], None] = lambda *_: None,
    ) -> None:
        """Begin without workers; `spawn` starts one.

        `mark` is unique to this nodeclient, and begins the mark in each worker's environment. `on_exit` is called once
        for each started worker, with its local rank and its exit code as in `subprocess` (-n for signal n).

        `on_outlived` is called if a worker, which is no shell, exits by itself after `terminate` while others of its
        process group live. It gets the local rank and these processes.
        """
        self._mark = mark
        self._marks = itertools.count(1)
        self._on_exit = on_exit
        self._watch_leftovers = watch_leftovers
        self._spawn = spawn
        self._on_outlived = on_outlived
        self._workers: dict[int, _Worker] = {}
        self._pids: list[int] = []
        """The process ids by local rank, of the last started round."""
        self._ended: list[_Worker] = []
        """The ended workers whose process groups are yet to be checked."""
        self._reaped: list[EndedWorker] = []
        """The workers that were reaped since the last sweep; the next one looks for their leftovers."""
        self._signalled = False
        """Whether the workers of this round were asked to end."""

    @property
    def pids(self) -> frozenset[int]:
        """The process ids of unreaped workers."""
        return frozenset(self._workers)

    def pid_of(self, local_rank: int) -> int:
        """Return the process id of a worker of this round, even after its end; 0 if it was never started."""
        return self._pids[local_rank] if local_rank < len(self._pids) else 0

    def start(
        self,
        commands: Sequence[WorkerCommand],
        streams: Sequence[WorkerStreams],
        reused: Mapping[int, ContinueWorker] = {},
    ) -> None:
        """Start the workers; the index of a command and of its streams is the local rank.

        The last round must have been swept. For a local rank in `reused`, the function there makes the parked process
        continue. If the parked process has ended meanwhile, a new one is started, as for all other local ranks.

        Raises `SpawnError` at the first failure; the workers before it live until `sweep` ends them.
        """
        parked = {worker.local_rank: worker for worker in self._workers.values() if worker.parked}
        assert len(parked) == len(self._workers), "the last round was not swept"  # noqa: S101
        self._signalled = False
        self._pids.clear()
        for local_rank, (command, own) in enumerate(zip(commands, streams, strict=True)):
            rank = command.environ.get("RANK", str(local_rank))
            worker = parked.get(local_rank)
            if worker is not None and local_rank in reused:
                worker.parked, worker.rank = False, rank
                self._pids.append(worker.pid)
                reused[local_rank](local_rank, own.stdout, own.stderr)
                continue
            mark = f"{self._mark}:{next(self._marks)}"
            marked = replace(command, environ={**command.environ, process_tree.MARK_VARIABLE: mark})
            with_stdin = len(commands) == 1  # for debugging, as under torchrun; several would compete for it
            pid = self._spawn(marked, local_rank, own.stdout, own.stderr, with_stdin)
            self._pids.append(pid)
            self._workers[pid] = _Worker(local_rank, pid, mark, rank)
            self._watch(self._workers[pid], pid)

    def terminate(self, signum: int = signal.SIGTERM) -> None:
        """Send every worker of the round the signal to end. From now on a process group may outlive its leader."""
        self._signalled = True
        process_tree.signal_groups({worker.pid for worker in self._in_round()}, signum)

    def park(self, local_rank: int) -> None:
        """Let a worker outlive its round, until the next `start` or `dismiss`."""
        for worker in self._workers.values():
            if worker.local_rank == local_rank:
                worker.parked = True

    def release_parked(self) -> None:
        """Park no worker any more, so that the next sweep ends all."""
        for worker in self._workers.values():
            worker.parked = False

    async def dismiss(self, local_ranks: AbstractSet[int], within_s: float) -> None:
        """End some parked workers, with SIGTERM, and after `within_s` with SIGKILL.

        Call it between two rounds, when no worker is in one; no round may start before it has returned. Raises
        `UnkillableError`; a later `sweep` retries.
        """
        ending = [worker for worker in self._workers.values() if worker.parked and worker.local_rank in local_ranks]
        for worker in ending:
            worker.parked = False
        process_tree.signal_groups({worker.pid for worker in ending}, signal.SIGTERM)
        until = asyncio.get_running_loop().time() + within_s
        while any(worker.exit_code() is None for worker in ending if worker.pid in self._workers):
            if asyncio.get_running_loop().time() >= until:
                break
            await asyncio.sleep(POLL_S)
        await self.sweep()

    def end_as(self, local_rank: int, exit_code: int) -> bool:
        """Kill a worker that outlives its program, and report the program's `exit_code`; return whether it lived."""
        for worker in self._workers.values():
            if worker.local_rank == local_rank and worker.exit_code() is None:
                worker.ended_as = exit_code
                signal_group(worker.pid, signal.SIGKILL)
                return True
        return False

    def kill(self) -> None:
        """Kill the process group of every worker in the round."""
        for worker in self._in_round():
            signal_group(worker.pid, signal.SIGKILL)

    def _in_round(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if not (worker.parked or worker.reported)]

    async def sweep(self) -> None:
        """Kill the process groups of the workers that have not exited; return when no worker lives.

        By then the workers are reaped, their exits are reported, and their leftovers are watched. Parked workers live
        on, with their descendants.

        Raises `UnkillableError` if something outlives SIGKILL for a minute. Then it may be called again. Make one call
        at a time, and do not cancel it.
        """
        # A parked worker that has died by itself was reported, and is not reaped while a process of its group lives.
        ending = [worker for worker in self._workers.values() if worker.reported or not worker.parked]
        killed = self._in_round()
        # Nothing is reaped before all is killed, so that the groups' numbers are not reused.
        for worker in killed:
            for pidfd in list(worker.watched):
                self._unwatch(worker, pidfd)
            signal_group(worker.pid, signal.SIGKILL)
        self._ended = [worker for worker in self._ended if worker not in killed]
        try:
            # In a thread, because reading all of /proc takes milliseconds, and a large process takes seconds to die.
            groups = frozenset(worker.pid for worker in killed)
            await asyncio.to_thread(process_tree.kill_marked, mark=None, groups=groups)
        except process_tree.UnkillableError:
            for worker in killed:
                self._watch(worker, worker.pid)
            raise
        for worker in killed:
            self._report(worker)
        ended, self._reaped = self._reaped, []
        await self._watch_leftovers([*ended, *(EndedWorker(worker.mark, worker.pid, worker.rank) for worker in ending)])
        for worker in ending:
            self._reap(worker)

    def _process_ended(self, worker: _Worker, pidfd: int) -> None:
        self._unwatch(worker, pidfd)
        if worker.watched:  # others of its process group count as the worker, and live
            return
        if not self._ended:
            # Workers often end together, and then share one scan of /proc.
            asyncio.get_running_loop().call_soon(self._settle)
        self._ended.append(worker)

    def _settle(self) -> None:
        """Report the exits of ended workers, but first watch the rest of a process group that counts as the worker.

        * After `terminate`, the rest counts as the worker.
        * If a signal has killed a shell before, the rest counts too, and is killed.
        * Otherwise the rest may live on. The next sweep reaps the worker, and watches the rest as leftovers.
        """
        ended, self._ended = self._ended, []
        left: dict[int, list[int]] = {worker.pid: [] for worker in ended}
        shells = set[int]()
        for status in process_tree.statuses():
            if status.group in left and not status.dead:
                left[status.group].append(status.pid)
            elif status.pid in left and status.is_shell:
                shells.add(status.pid)
        for worker in ended:
            is_killed_shell = worker.pid in shells and (worker.exit_code() or 0) < 0
            if is_killed_shell and not self._signalled:
                signal_group(worker.pid, signal.SIGKILL)
            for pid in left[worker.pid] if is_killed_shell or self._signalled else ():
                self._watch(worker, pid)
            if worker.watched and worker.pid not in shells and (worker.exit_code() or 0) >= 0:
                self._on_outlived(worker.local_rank, left[worker.pid])
            if not worker.watched:
                self._report(worker)
                if not left[worker.pid]:
                    self._reap(worker)
                    self._reaped.append(EndedWorker(worker.mark, None, worker.rank))

    def _report(self, worker: _Worker) -> None:
        code = worker.exit_code()
        if code is not None and not worker.reported:
            worker.reported = True
            self._on_exit(worker.local_rank, code)

    def _reap(self, worker: _Worker) -> None:
        os.waitpid(worker.pid, 0)
        del self._workers[worker.pid]

    def _watch(self, worker: _Worker, pid: int) -> None:
        try:
            pidfd = pidfd_open(pid)
        except ProcessLookupError:
            return
        worker.watched.add(pidfd)
        asyncio.get_running_loop().add_reader(pidfd, self._process_ended, worker, pidfd)

    def _unwatch(self, worker: _Worker, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        worker.watched.remove(pidfd)
        os.close(pidfd)


def signal_group(group: int, signum: signal.Signals) -> None:
    """Send a signal to a process group, unless it is gone or belongs to another user by now."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        # The kernel refuses only if it may signal no process of the group: all of them changed their user.
        return
