"""Processes of one host that can outlive their round: they leave it, refuse to, or are stuck."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from nodeclient.core.effects import Dismiss, LeaveRound, Park, ReuseOrder, Start
from nodeclient.core.events import (
    CollectiveFailed,
    ReuseReported,
    WorkerAborts,
    WorkerExited,
    WorkerLeft,
    WorkerRefuses,
)
from tests.support.builders import LOST_PEER, a_diagnosis

if TYPE_CHECKING:  # workers import this
    from tests.sim.host import Host
    from tests.sim.workers import LocalWorkers
    from tests.sim.world import World

LEAVES_WITHIN_S = 0.3
FAILS_WITHIN_S = 0.002
"""The time within which a collective fails when a peer is gone."""

SEEN_WITHIN_S = 0.004
"""The time within which the exit of a process is seen: a collective that fails because of it may be reported before."""


class StayingWorkers:
    """The processes of one nodeclient that may outlive their round.

    Their acts are drawn from a generator of its own, so that histories without them play what they always played.
    """

    def __init__(self, host: Host, world: World, workers: LocalWorkers) -> None:
        self._host, self._world, self._workers = host, world, workers
        self._chance = random.Random(f"{world.seed} {host.name}")  # noqa: S311 - repeatable on purpose
        self.held: set[int] = set()
        """The local ranks of processes that wait, by the agent's knowledge."""
        self._out: set[int] = set()
        """The local ranks of processes that have left their round."""
        self.failed: set[int] = set()
        """The local ranks of processes in which a collective has failed."""
        self._cuts = random.Random(f"{world.seed} {host.name} connections")  # noqa: S311 - repeatable on purpose
        self._aborts = random.Random(f"{world.seed} {host.name} aborts")  # noqa: S311 - repeatable on purpose
        self.able = False
        """Whether the processes of the present round can stay."""

    def begin(self, start: Start) -> None:
        """Let the processes that wait go on as workers of a round."""
        self._world.invariants.agents.stays(self._host, start, self.held, self._out)
        self.held.clear()
        self._out.clear()
        self.failed.clear()

    def announce(self) -> None:
        """Let the workers of a round report whether they can stay."""
        stay = self._world.scenario.workers.stay
        self.able = stay > 0 and self._chance.random() < stay
        if self.able:
            for rank in sorted(self._workers.alive):
                self._host.submit(ReuseReported(rank))

    def lose_peer(self) -> bool:
        """Let a collective fail in a worker, soon; return whether the workers can stay."""
        if self.able and self._workers.alive:
            self._plan(FAILS_WITHIN_S, self._fail, min(self._workers.alive))
        return self.able

    def carry_out(self, order: ReuseOrder) -> None:
        """Carry out an effect of the agent."""
        workers = self._workers
        match order:
            case LeaveRound():
                for rank in sorted(workers.alive):
                    if self._aborts.random() < 0.3:
                        self._plan_after(0.0, self._host.submit, WorkerAborts(rank))
                    answer = self._chance.random()
                    if rank in self.failed:
                        pass  # it leaves already, or is stuck
                    elif answer < 0.8:
                        self._plan(LEAVES_WITHIN_S, self._leave, rank)
                    elif answer < 0.9:
                        self._plan(LEAVES_WITHIN_S, self._refuse, rank)
            case Park(rank):
                self._park(rank)
            case Dismiss(ranks):
                self.held.difference_update(ranks)

    def _park(self, rank: int) -> None:
        if rank in self._workers.alive:  # otherwise it has died, which the stopped nodeclient will see
            self._workers.part(rank)
            self.held.add(rank)
        if self._chance.random() < 0.1:
            self._plan(LEAVES_WITHIN_S, self._die, rank)
        if self._cuts.random() < 0.1:
            self._plan_after(LEAVES_WITHIN_S * self._cuts.random(), self._cut_off, rank)

    def see(self, rank: int, exit_code: int, error: str) -> None:
        """Let the nodeclient see the exit of a worker: at once, or after failures that it causes."""
        exited = WorkerExited(rank, exit_code, a_diagnosis(error=error))
        if self.able and self._host.agent is not None:
            self._plan(SEEN_WITHIN_S, self._host.submit, exited)
        else:
            self._host.submit(exited)

    def _plan(self, within_s: float, act: object, *arguments: object) -> None:
        self._plan_after(within_s * self._chance.random(), act, *arguments)

    def _plan_after(self, seconds: float, act: object, *arguments: object) -> None:
        self._world.queue.plan(seconds, self._do, self._workers.starts, self._host.agent, act, arguments)

    def _do(self, starts: int, agent: object, act: object, arguments: tuple[object, ...]) -> None:
        if (starts, agent) == (self._workers.starts, self._host.agent):
            act(*arguments)  # type: ignore[operator]  # `_plan` takes any callable

    def _fail(self, rank: int) -> None:
        """Let a collective fail; the worker then destroys its groups, which may hang."""
        if rank in self._workers.alive:
            self.failed.add(rank)
            if self._chance.random() < 0.8:
                self._plan(LEAVES_WITHIN_S, self._leave, rank)
            self._host.submit(CollectiveFailed(rank, 1, a_diagnosis(error=LOST_PEER)))

    def _leave(self, rank: int) -> None:
        self._out.add(rank)
        if rank in self._workers.alive:
            self._host.submit(WorkerLeft(rank))

    def _refuse(self, rank: int) -> None:
        if rank in self._workers.alive:
            self._host.submit(WorkerRefuses(rank, "it is busy"))

    def _cut_off(self, rank: int) -> None:
        """Cut the connection to a process that waits: it cannot get a round any more."""
        if rank in self.held:
            self._host.submit(ReuseReported(rank, able=False))

    def _die(self, rank: int) -> None:
        if rank in self.held:
            self.held.discard(rank)
            self._host.submit(WorkerExited(rank, -9, a_diagnosis()))
