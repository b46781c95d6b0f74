"""The agent's end of the connections to workers that can enter another round as the same processes.

Such a worker is asked to leave its round. Then it is *parked*: it waits until it is sent the data of the next round, or
is *dismissed*, that is, ended. `workerlib.contract.round_messages` has the messages. A connection lasts as long as its
process, so it outlives rounds. Messages of a worker are not trusted, because it may be any program of this user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coordinatord.runtime.tasks import Tasks
from nodeclient.core import events
from nodeclient.core.effects import Dismiss, LeaveRound, Park, ReuseOrder
from nodeclient.core.events import Event
from nodeclient.host.process_state import is_stopped
from nodeclient.host.worker_socket import Connection, MessageSocket
from nodeclient.workers.local_workers import LocalWorkers
from nodeclient.workers.process_tree import UnkillableError
from nodeclient.workers.spawn import WorkerCommand
from workerlib.contract import round_messages
from workerlib.contract.env import ROUNDS, STACKS
from workerlib.contract.round_messages import ROUND_CODEC, RoundMessage

FAILED = 1
"""The exit code of a Python after an error. A worker that leaves its round after an error counts as failed with it."""

_REMOVED = frozenset({STACKS})
"""Variables that a worker removes from its environment when it reads them, so each round sends them again."""

STOPPED = "a worker was stopped by a signal, such as SIGSTOP"
"""Why a worker is not asked to leave its round in an unplanned end, since it would not answer."""


@dataclass(slots=True, eq=False)
class _ReusableProcess(Connection):
    """A connection to a process; it has a local rank once the process has reported that it is reusable."""

    round: int = 0
    has_failed: bool = False
    """Whether the worker has reported that a collective failed in this round."""
    has_left: bool = False
    """Whether it has reported that it has left this round."""


class Dismissals:
    """Ends dismissed workers, one dismissal after the other."""

    def __init__(self, workers: LocalWorkers, tasks: Tasks, within_s: float, complain: Callable[[str], None]) -> None:
        """Begin without dismissals. Workers have `within_s` to end; `complain` gets a text if one cannot be killed."""
        self._workers = workers
        self._tasks = tasks
        self._within_s = within_s
        self._complain = complain
        self._last: asyncio.Task[None] | None = None
        self._retries = True
        """Whether a dismissal goes on while a worker cannot be killed."""

    def begin(self, local_ranks: frozenset[int]) -> None:
        """Dismiss workers after the dismissals before."""
        self._retries = True
        self._last = self._tasks.spawn(self._dismiss(local_ranks, self._last), name="dismiss")

    async def await_all(self, clear_up: Callable[[], Awaitable[None]]) -> None:
        """Wait until all dismissed workers have ended, then for `clear_up`; if more are dismissed meanwhile, again."""
        while True:
            last = self._last
            if last is not None:
                await asyncio.shield(last)
            await clear_up()
            if last is self._last:
                return

    async def await_unless_unkillable(self) -> None:
        """Wait until all dismissed workers have ended, or one cannot be killed. A sweep may retry that."""
        self._retries = False
        if self._last is not None:
            await asyncio.shield(self._last)

    async def _dismiss(self, local_ranks: frozenset[int], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        ending = self._workers.dismiss(local_ranks, self._within_s)
        while True:
            try:
                await ending
            except UnkillableError as error:
                self._complain(str(error))
                if not self._retries:
                    return
                ending = self._workers.sweep()
            else:
                return


class ReusableWorkers:
    """The reusable workers of one node; all methods are for the event loop's thread.

    For each round the node calls `listen` and `begin`, and then `LocalWorkers.start` calls `continue_in_round` for each
    worker that is reused.
    """

    def __init__(
        self,
        workers: LocalWorkers,
        tasks: Tasks,
        *,
        submit: Callable[[Event], None],
        submit_in_order: Callable[[events.CollectiveFailed | events.WorkerLeft], None],
        dismissed_within_s: float,
        complain: Callable[[str], None],
    ) -> None:
        """Begin without connections.

        `submit_in_order` submits an event after those of all earlier exits: a collective fails because a peer has
        exited, and that exit has to be judged first. Dismissed workers have `dismissed_within_s` to end; `complain`
        gets a text if one cannot be killed.
        """
        self._workers = workers
        self._submit = submit
        self._submit_in_order = submit_in_order
        self.dismissals = Dismissals(workers, tasks, dismissed_within_s, complain)
        self._socket = MessageSocket("rounds", ROUND_CODEC, _ReusableProcess, self._handle, self._end)
        self._round = 0
        self._commands_before: Sequence[WorkerCommand] = ()
        self._commands: Sequence[WorkerCommand] = ()
        """The commands of the workers of this round, by local rank."""

    def listen(self, folder: Path, workers: int) -> dict[str, str]:
        """Accept the workers of a round; return the variable with the socket's path, or none on an error."""
        with suppress(OSError):
            return {ROUNDS: self._socket.listen(folder, workers)}
        return {}  # no worker is reusable

    def begin(self, number: int, commands: Sequence[WorkerCommand]) -> None:
        """Begin a round, with the commands of its workers by local rank."""
        self._round, self._commands_before, self._commands = number, self._commands, commands

    def continue_in_round(self, local_rank: int, stdout: int, stderr: int) -> None:
        """Send a parked process the environment and the descriptors of its next round."""
        before, now = self._commands_before[local_rank].environ, self._commands[local_rank].environ
        slots = self._commands[local_rank].slots
        fds = (stdout, stderr) if slots is None else (stdout, stderr, slots)
        changes: dict[str, str | None] = {
            name: value for name, value in now.items() if before.get(name) != value or name in _REMOVED
        }
        changes |= dict.fromkeys(before.keys() - now.keys())
        # Any process may claim a local rank, so all that do are told; only the parked one waits for it.
        for connection in [each for each in self._socket.connections if each.local_rank == local_rank]:
            connection.round, connection.has_failed, connection.has_left = self._round, False, False
            self._socket.send(connection, round_messages.NextRound(self._round, changes), fds)
        if all(each.local_rank != local_rank for each in self._socket.connections):
            # The parked process has lost its connection, and would wait for ever.
            self._workers.end_as(local_rank, FAILED)

    def carry_out(self, order: ReuseOrder) -> None:
        """Carry out an effect of the agent."""
        match order:
            case LeaveRound(planned):
                for connection in list(self._socket.connections):
                    if connection.local_rank is None:
                        continue
                    if not planned and is_stopped(connection.pid):  # a planned end can wait until somebody continues it
                        self._submit(events.WorkerRefuses(connection.local_rank, STOPPED))
                    else:
                        self._socket.send(connection, round_messages.AskToLeave(connection.round, planned))
            case Park(local_rank):
                self._workers.park(local_rank)
            case Dismiss(local_ranks):
                self.dismissals.begin(frozenset(local_ranks))

    def close(self) -> None:
        """End all connections."""
        self._socket.close()

    # Messages of workers

    def _handle(self, connection: _ReusableProcess, message: RoundMessage) -> None:
        local_rank = connection.local_rank
        match message:
            case round_messages.Reusable(claimed, number):
                if local_rank is None and number == self._round and claimed < len(self._commands):
                    connection.local_rank, connection.round = claimed, number
                    self._submit(events.ReuseReported(claimed))
            case round_messages.AskToLeave() | round_messages.NextRound():  # only this side sends these
                self._socket.end(connection)
            case _ if local_rank is not None and message.round == connection.round:
                self._handle_report(connection, local_rank, message)

    def _handle_report(self, connection: _ReusableProcess, local_rank: int, message: RoundMessage) -> None:
        """Handle a worker's report of its round. `Failed` and `Left` count once in a round."""
        match message:
            case round_messages.Failed(_, error, lines) if not connection.has_failed:
                connection.has_failed = True
                diagnosis = events.Diagnosis(pid=connection.pid, error=error, last_lines=lines)
                self._submit_in_order(events.CollectiveFailed(local_rank, FAILED, diagnosis))
            case round_messages.Aborting():
                self._submit(events.WorkerAborts(local_rank))
            case round_messages.Aborted(_, took_s):
                self._submit(events.WorkerAborts(local_rank, took_s))
            case round_messages.Left() if not connection.has_left:
                connection.has_left = True
                submit = self._submit_in_order if connection.has_failed else self._submit
                submit(events.WorkerLeft(local_rank))
            case round_messages.Refusing(_, why):
                self._submit(events.WorkerRefuses(local_rank, why))

    def _end(self, connection: _ReusableProcess) -> None:
        if connection.local_rank is not None:
            self._submit(events.ReuseReported(connection.local_rank, able=False))
