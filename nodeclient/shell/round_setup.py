"""Sets up each round of a node: the workers' commands, and the resources that they share with this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from coordinatord.protocol.messages import Assignment, Observed
from nodeclient.config.join_config import JoinConfig
from nodeclient.core.effects import Level, Start
from nodeclient.core.leftover_stages import Lingering
from nodeclient.diagnosis.stack_service import StackService
from nodeclient.forkserver.starter import WorkerStarter
from nodeclient.output.output import WorkerStreams
from nodeclient.shell.host_programs import HostPrograms
from nodeclient.shell.worker_command import CommandBuilder
from nodeclient.workers.guard import Guard
from nodeclient.workers.spawn import WorkerCommand
from nodeclient.workers.step_slots import Slots


class RoundSetup:
    """Sets up one round at a time, and has the facts about it until the next round.

    The node sets `assigned` when it is asked whether a round may start here. At the start it calls `begin`, sees that
    the guard is ready, calls `commands`, and sets `started_at` once the workers are started. With each report it calls
    `first_step` and `overdue`.

    It also has what workers need and what outlives rounds: the guard, the slots, the starter, and the programs that
    test this host, since workers start only after a test.
    """

    def __init__(
        self,
        config: JoinConfig,
        launcher: CommandBuilder,
        guard: Guard,
        stacks: StackService,
        programs: HostPrograms,
        *,
        remark: Callable[[Level, str], None],
        complain: Callable[[str], None],
    ) -> None:
        """Begin before the first round. `remark` shows a text of any level to the user, and `complain` a warning."""
        self._launcher = launcher
        self.remarks = launcher.remarks
        """Texts about decisions that a user may want to know of."""
        self._stacks = stacks
        self._lingering = Lingering()
        """The workers of the round whose programs are over."""
        self._workers = config.workers
        command = launcher.common_command()
        self.starter = WorkerStarter(config.preload, command, remark, workers=config.workers)
        self.guard = guard
        self.programs = programs
        self.slots = Slots(config.workers, complain)
        self.assigned: tuple[int, Assignment] | None = None
        """The last round in which this node had ranks, with its assignment."""
        self.ranks = range(0)
        """The global ranks of the workers here."""
        self.started_at: float | None = None
        """When the workers of the round were started; None once they have reported a step."""

    def begin(self, start: Start) -> range:
        """Begin a round; return the global ranks of its workers here."""
        first = start.assignment.first_rank
        self.ranks, self.started_at = range(first, first + self._workers), None
        return self.ranks

    def commands(
        self, start: Start, streams: Sequence[WorkerStreams], private: Path, sockets: Mapping[str, str]
    ) -> list[WorkerCommand]:
        """Return the commands of the workers; the guard must be ready. Raises `OSError`.

        The workers get the variables of `sockets`, and connect to a further socket in the `private` folder.
        """
        self._lingering = Lingering()
        store_port = start.assignment.master_port
        stacks = self._stacks.listen(private, start.run, start.round, self.ranks, store_port)
        variables = [{**slot, **stacks, **sockets} for slot in self.slots.begin(start.run, start.round)]
        commands = self._launcher.commands(start, streams, variables)
        return [replace(command, slots=self.slots.file) for command in commands]

    def assignment_in(self, number: int) -> Assignment | None:
        """Return the assignment of this node in a round; None if it has no ranks there."""
        return self.assigned[1] if self.assigned is not None and self.assigned[0] == number else None

    def first_step(self, observed: Observed, now: float) -> str | None:
        """Return the notice of the workers' first step in their round; None before it, and after the first call."""
        step = next((step for step in observed.steps if step is not None), None)
        if step is None or self.started_at is None:
            return None
        took_s, self.started_at = now - self.started_at, None
        return f"round {observed.round} trains: step {step} was reported {took_s:.0f} s after its workers were started"

    def overdue(self, now: float) -> list[tuple[int, int]]:
        """Return the local ranks of workers whose processes linger after their programs, with their exit codes."""
        return self._lingering.overdue(self.slots.exit_codes(), now)

    def close(self) -> None:
        """Release what is shared with the last round's workers, and end the guard.

        The starter ends when its `run` is cancelled.
        """
        self._stacks.close()
        self.guard.close()
        self.slots.close()
