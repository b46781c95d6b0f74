"""A host of the simulated world: a node's agent, its session and its worker processes, as the real shell has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinatord.wire.messages import Desired, Phase, Refused
from nodeclient.core.agent import Agent, Settings
from nodeclient.core.effects import Effect, Exit, Kill, Reconnect, Report, Start, Sweep, Terminate
from nodeclient.core.events import (
    Event,
    LeaveAsked,
    SessionClosed,
    SessionOpened,
    Swept,
    Tick,
    Told,
    TurnedAway,
    WorkerExited,
    WorkersStarted,
)
from tests.support.builders import a_join, an_offer

if TYPE_CHECKING:  # the world imports its hosts
    from tests.support.world import Connection, World

SETTINGS = Settings(workers=2, join_timeout_s=15.0, stop_timeout_s=3.0, outage_grace_s=20.0)


class Host:
    """One machine: it may be up or down, cut off or not, and have at most one nodeclient."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.cut = False
        self.incarnation = 0
        self.agent: Agent | None = None
        self.connection: Connection | None = None
        self.workers: dict[int, int] = {}
        """The workers that live, by local rank; the number tells them from those of other starts."""
        self.round: tuple[str, int] = ("", 0)
        """Of the workers."""
        self.exit: Exit | None = None
        """How the last nodeclient ended."""
        self._starts = 0
        self._alarm = 0
        world.after(world.between(0.0, 3.0), self.boot)

    # The nodeclient

    def boot(self) -> None:
        """Start a nodeclient, if none is running."""
        if self.agent is None:
            self.incarnation += 1
            self.exit = None
            self.agent = Agent(SETTINGS, self._port(), self.world.now)
            self._arm()
            self._dial(self.incarnation)

    def die(self, *, seen: bool) -> None:
        """Kill the nodeclient and its workers; if the host itself dies, nobody sees the connection close."""
        if self.agent is None:
            return
        self.agent = None
        if self.workers:
            self.workers.clear()
            self._disturb_peers()
        connection, self.connection = self.connection, None
        if connection is not None:
            if seen:
                self.world.close_at_host(connection)
            else:
                self.world.sever(connection)

    def leave(self) -> None:
        """Send the nodeclient a SIGTERM."""
        self._submit(LeaveAsked(15))

    def fail_a_worker(self) -> None:
        """Let a worker fail of itself, if there is one."""
        if self.workers:
            self.world.laws.genuine.add(self.round)
            self._worker_ends(self.world.chance.choice(sorted(self.workers)), self._starts, 1)

    def drop_session(self) -> None:
        """Lose the connection, seen by both sides."""
        if self.connection is not None:
            connection = self.connection
            self.world.close_at_host(connection)
            self.session_ended(connection)

    def hear(self, said: Desired | Refused) -> None:
        """Hear the coordinator."""
        if isinstance(said, Desired):
            self.world.laws.told(self, said)
            self._submit(Told(said))
        else:
            self._submit(TurnedAway(said))

    def session_ended(self, connection: Connection) -> None:
        """Take note that a session has ended, and try another in a moment."""
        if self.connection is connection:
            self.world.close_at_host(connection)
            self.connection = None
            self._submit(SessionClosed("the connection closed"))
            self._redial()

    def _redial(self) -> None:
        self.world.after(self.world.between(0.05, 1.0), self._dial, self.incarnation)

    def _dial(self, incarnation: int) -> None:
        if self.agent is None or incarnation != self.incarnation or self.connection is not None:
            return
        if self.cut:
            self._submit(SessionClosed("no answer within 5 s"))
            self.world.after(5.0, self._dial, incarnation)
            return
        observed = self.agent.observed(self.world.now, beat=True)
        join = a_join(
            self.name,
            incarnation=self.incarnation,
            spec=self.world.spec,
            offer=an_offer(self.name, workers=SETTINGS.workers, join_timeout_s=15.0, stop_timeout_s=3.0),
            observed=observed,
        )
        self.connection = self.world.connect(self, join)
        self._submit(SessionOpened("coordinator"))

    def _submit(self, event: Event) -> None:
        if self.agent is None:
            return
        for effect in self.agent.handle(event, self.world.now):
            self._carry_out(effect)
        self._arm()

    def _arm(self) -> None:
        self._alarm += 1
        due = self.agent.next_deadline() if self.agent else None
        if due is not None:
            self.world.after(max(0.0, due - self.world.now), self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._submit(Tick())

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901 - one plain case an effect
        world = self.world
        match effect:
            case Start():
                world.laws.starts(self, effect)
                self._start(effect)
            case Terminate():
                for rank in self.workers:
                    # Some save their state, some are stuck.
                    slow = world.chance.choice([0.01, 0.3, 2.0, 100.0])
                    self._end_later(rank, world.between(0.001, slow), -15)
            case Kill():
                for rank in self.workers:
                    # A few hang in the kernel for a while.
                    slow = world.chance.choice([0.05] * 30 + [25.0])
                    self._end_later(rank, world.between(0.001, slow), -9)
            case Sweep():
                world.after(world.between(0.001, 0.1), self._swept, self.incarnation)
            case Report(observed):
                if self.connection is not None:
                    world.send_up(self.connection, observed)
            case Reconnect():
                world.after(0.0, self.drop_session)
            case Exit():
                self.exit = effect
                assert not self.workers, f"{self.name} ended with workers alive"
                world.after(0.0, self._exited)

    def _exited(self) -> None:
        self.die(seen=True)

    # The workers

    def _start(self, start: Start) -> None:
        self._starts += 1
        self.round = (start.run, start.round)
        self.workers = dict.fromkeys(range(SETTINGS.workers), self._starts)
        spread = self.world.chance.choice([0.5, 0.5, 8.0])
        for rank in self.workers:
            self._end_later(rank, self.world.work_s + self.world.between(0.0, spread), 0)
        self.world.after(0.0, self._started, self.incarnation)

    def _end_later(self, rank: int, seconds: float, exit_code: int) -> None:
        self.world.after(seconds, self._worker_ends, rank, self._starts, exit_code)

    def _worker_ends(self, rank: int, start: int, exit_code: int) -> None:
        if self.workers.get(rank) != start:
            return  # it ended before, of something else
        del self.workers[rank]
        self.world.laws.worker_ended(self, exit_code)
        if exit_code != 0:
            self._disturb_peers()
        self._submit(WorkerExited(rank, exit_code))

    def _started(self, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self._submit(WorkersStarted())

    def _swept(self, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self._submit(Swept(self._port()))

    def _disturb_peers(self) -> None:
        """The workers of a round fail soon after one of them has gone: their collectives break."""
        if self.cut or self.connection is None:
            self.world.laws.unseen.add(self.round)
        for host in self.world.hosts.values():
            if host is not self and host.round == self.round:
                for rank in host.workers:
                    host._end_later(rank, self.world.between(0.01, 0.4), 1)

    def _port(self) -> int:
        return self.world.chance.randint(30_000, 60_000)

    @property
    def phase(self) -> Phase | None:
        """What its workers are doing; None without a nodeclient."""
        return self.agent.phase if self.agent else None
